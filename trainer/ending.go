package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// ErrNothingTrained is the error of a run whose steps did not change any weight.
var ErrNothingTrained = errors.New("nothing was trained")

// checkTrained checks the workers of this process after a completed run, and notes what an agent missed. If there were steps to learn
// from and no weight changed, it instead returns an ErrNothingTrained with these reasons. A sub-agent that was never called is
// an error of the main agent's process only.
func (g *workerGroup) checkTrained(o metrics.Observer) error {
	calls := slices.ContainsFunc(g.workers, (*worker.Worker).Main)
	var missed []metrics.Note
	var reasons []string
	learns, learned := false, false
	for _, w := range g.workers {
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

// retryCause is the cause of a round's end if another round may succeed. The zero value means that there was no such
// cause.
type retryCause struct {
	class   worker.ErrorClass // ValueDiffers or FollowerLost
	version int64             // ValueDiffers: the version at which the round began; FollowerLost: the version reached
}

// retryCauseOf returns the cause behind an error, in a round that began at version start and reached version reached.
func retryCauseOf(err error, start, reached int64) retryCause {
	switch class := worker.Classify(err); class {
	case worker.ValueDiffers:
		return retryCause{class, start}
	case worker.FollowerLost:
		return retryCause{class, reached}
	}
	return retryCause{}
}

// mayRetry reports whether another round may help. It does not help after the same cause twice in a row.
func (c retryCause) mayRetry(before retryCause) bool { return c != retryCause{} && c != before }

// recordLostGPU records the loss of a GPU, if err is one, in the run's folder, and returns err. If the previous process also lost one of
// the agent's GPUs at this version, or if that cannot be read, the returned error states it and is not a LostError.
func recordLostGPU(dir, name string, version int64, err error) error {
	var own *torch.LostError
	var follower *launch.LostError
	if !errors.As(err, &own) && !(errors.As(err, &follower) && follower.GPU) {
		return err
	}
	again, unknown := archive.RecordLostGPU(dir, name, version)
	switch {
	case unknown != nil: // it is unknown whether another process would help
		return fmt.Errorf("%v; %w", err, unknown)
	case again:
		return fmt.Errorf("%v; again at version %d, so another start does not help", err, version)
	}
	return err
}

// recordCause returns the cause of the first error of this group. The first call stores it in g.cause, and err must then
// come from agent's worker. Later calls ignore their arguments.
func (g *workerGroup) recordCause(agent string, err error) retryCause {
	g.first.Do(func() {
		reached := g.start.Version
		for _, w := range g.workers {
			if w.Name() == agent {
				reached = w.Parts().Policy.Version()
			}
		}
		g.cause = retryCauseOf(err, g.start.Version, reached)
	})
	return g.cause
}

// withMemoryRemedy adds a remedy to an agent's error if memory ran out.
func withMemoryRemedy(cfg *config.Config, t task.Task, name string, err error) error {
	if !launch.OutOfMemory(err) {
		return err
	}
	needs, uncounted := assemble.MemoryNeeds(cfg, []string{name}, t)
	if uncounted != nil {
		return errors.Join(err, uncounted)
	}
	var keys []string
	for _, l := range memory.Levers(needs[:1]) { // needs of followers are among them
		keys = append(keys, fmt.Sprintf("%s (%d)", l.Key, l.Value))
	}
	return fmt.Errorf("%w: there is not enough memory for %s on %s: lower %s, and resume the run", err, name, needs[0].Device, strings.Join(keys, " or "))
}
