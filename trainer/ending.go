package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// ErrNothingTrained is the error of a run whose steps did not change any weight.
var ErrNothingTrained = errors.New("nothing was trained")

// checkTrained checks the workers of this process after a completed run, and notes what an agent missed. If there were steps to learn
// from and no weight changed, it instead returns an ErrNothingTrained with these reasons. A sub-agent that was never called is
// an error of the main agent's process only.
func (t *team) checkTrained(o metrics.Observer) error {
	calls := slices.ContainsFunc(t.workers, (*worker.Worker).Main)
	var missed []metrics.Note
	var reasons []string
	learns, learned := false, false
	for _, w := range t.workers {
		e := w.Ending()
		for _, text := range e.Missed {
			missed = append(missed, metrics.Warnf(w.Name(), metrics.TopicStop, "%s", text))
			reasons = append(reasons, "  "+w.Name()+": "+text)
		}
		learns = learns || e.Trains && (calls || e.Called)
		learned = learned || e.Trained
	}
	if learns && !learned {
		slices.Sort(reasons)
		return fmt.Errorf("%w:\n%s", ErrNothingTrained, strings.Join(reasons, "\n"))
	}
	for _, n := range missed {
		o.Note(n)
	}
	return nil
}
