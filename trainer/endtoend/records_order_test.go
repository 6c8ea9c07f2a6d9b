package endtoend

import (
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// slowObserver is an observer that is slow to record the researcher's steps. It also notes rollouts that end before a step is recorded.
type slowObserver struct {
	mu     sync.Mutex
	noted  int64 // the researcher's last step
	behind []int64
}

func (l *slowObserver) Note(metrics.Note) {}

func (l *slowObserver) Report(r metrics.Record) {
	if r.Kind == metrics.KindStep && r.Agent == "researcher" {
		time.Sleep(200 * time.Millisecond)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.noted = r.Step
	}
}

func (l *slowObserver) Progress(p metrics.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Activity == metrics.RollOut && p.Version > l.noted {
		l.behind = append(l.behind, p.Version)
	}
}

// TestRecordsPrecedeNextRollouts checks that a step's records are reported before the next step's rollouts begin.
func TestRecordsPrecedeNextRollouts(t *testing.T) {
	seen := &slowObserver{}
	if err := trainer.Train(t.Context(), load(t, t.TempDir(), "run.steps=3"), trainer.TrainOptions{Observer: seen}); err != nil {
		t.Fatal(err)
	}
	if seen.noted != 3 || len(seen.behind) > 0 {
		t.Errorf("%d steps were reported; rollouts of versions %v were played before the previous step was", seen.noted, seen.behind)
	}
}
