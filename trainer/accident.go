package trainer

import (
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/launch"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// accident is why a round ended that may go well when it is begun again: a worker had other values than its predecessor, or a follower
// was lost. The zero accident is none.
type accident struct {
	kind    string
	version int64 // from which the round began, of values that differ; that the worker had reached, of a lost follower
}

// accidentOf is the accident that an error tells of, in a round that began from a version and reached another.
func accidentOf(err error, start, reached int64) accident {
	var conflict *store.ConflictError
	var lost *launch.LostError
	switch {
	case errors.As(err, &conflict):
		return accident{"conflict", start}
	case errors.As(err, &lost):
		return accident{"lost", reached}
	}
	return accident{}
}

// mayPass says whether the round is to be begun again: not after the same accident twice in a row.
func (a accident) mayPass(before accident) bool { return a.kind != "" && a != before }

// lostGPU is an agent's error, or where it says that one of the agent's GPUs was lost, as in the process before at the same version, one
// that no new process mends.
func lostGPU(dir, name string, version int64, err error) error {
	var own *torch.LostError
	var follower *launch.LostError
	if !errors.As(err, &own) && !(errors.As(err, &follower) && follower.GPU) {
		return err
	}
	again, unknown := archive.LostGPU(dir, name, version)
	switch {
	case unknown != nil: // nor is it known whether another process will mend it
		return fmt.Errorf("%v; %w", err, unknown)
	case again:
		return fmt.Errorf("%v; at version %d again, so starting again does not help", err, version)
	}
	return err
}

// happened is the accident that the first error tells of, which is one of agent's worker.
func (t *team) happened(agent string, err error) accident {
	t.first.Do(func() {
		reached := t.start.Version
		for _, w := range t.workers {
			if w.name == agent {
				reached = w.Policy.Version()
			}
		}
		t.accident = accidentOf(err, t.start.Version, reached)
	})
	return t.accident
}
