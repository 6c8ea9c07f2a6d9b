package trainer

import (
	"context"
	"os"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/health"
)

// probe shows a worker to the health server and the live page.
type probe struct{ parts *assemble.Parts }

// Alive waits until the device's thread has executed an empty job, or until ctx ends. A hosted model has no device that
// could hang.
func (p probe) Alive(ctx context.Context) error {
	if p.parts.Device == nil {
		return nil
	}
	return p.parts.Device.Do(ctx, func(*torch.Scope) error { return nil })
}

// Version returns the number of training steps of the weights.
func (p probe) Version() int64 { return p.parts.Policy.Version() }

// Rollouts returns the number of open conversations.
func (p probe) Rollouts() int { return p.parts.Player.Talking() }

// Question returns a query's text and its reference answer, or "" if the task does not have the id.
func (p probe) Question(id string) (text, answer string) {
	q, err := p.parts.Player.Task.Lookup(id)
	if err != nil {
		return "", ""
	}
	return q.Text, q.Answer
}

// Saved returns a function that finds the run's newest complete checkpoint, for a health server.
func Saved(cfg *config.Config) health.Saved {
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
