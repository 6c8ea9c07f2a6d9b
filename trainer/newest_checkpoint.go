package trainer

import (
	"os"
	"time"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// newestCheckpoint returns a function that finds the run's newest complete checkpoint, for a health server.
func newestCheckpoint(cfg *config.Config) health.NewestCheckpoint {
	checkpoints := archive.Checkpoints{Dir: archive.CheckpointsDir(cfg.RunDir())}
	return func() (step int64, at time.Time, ok bool) {
		steps, err := checkpoints.List()
		if err != nil || len(steps) == 0 {
			return 0, time.Time{}, false
		}
		step = steps[len(steps)-1]
		info, err := os.Stat(checkpoints.StepDir(step)) // the manifest, which is written last
		if err != nil {
			return 0, time.Time{}, false // it was removed a moment ago
		}
		return step, info.ModTime(), true
	}
}
