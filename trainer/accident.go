package trainer

import (
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/launch"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// accident is the cause of a round's end if another round may succeed: a worker's values differed from its
// predecessor's, or a follower was lost. The zero value means that there was no such cause.
type accident struct {
	kind    string
	version int64 // of a conflict: the version from which the round began; of a lost follower: the version reached
}

// accidentOf returns the accident behind an error, in a round that began from version start and reached version
// reached.
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

// mayPass reports whether another round is worth a try: not after the same accident twice in a row.
func (a accident) mayPass(before accident) bool { return a.kind != "" && a != before }

// lostGPU returns err. If one of the agent's GPUs was lost, as it was in the previous process at the same version, the
// result states that another process will not help, and is no longer a LostError.
func lostGPU(dir, name string, version int64, err error) error {
	var own *torch.LostError
	var follower *launch.LostError
	if !errors.As(err, &own) && !(errors.As(err, &follower) && follower.GPU) {
		return err
	}
	again, unknown := archive.LostGPU(dir, name, version)
	switch {
	case unknown != nil: // it is unknown whether another process would help
		return fmt.Errorf("%v; %w", err, unknown)
	case again:
		return fmt.Errorf("%v; again at version %d, so another start does not help", err, version)
	}
	return err
}

// happened returns the accident behind the first error of this team, which came from agent's worker.
func (t *team) happened(agent string, err error) accident {
	t.first.Do(func() {
		reached := t.start.Version
		for _, w := range t.workers {
			if w.Name() == agent {
				reached = w.Parts().Policy.Version()
			}
		}
		t.accident = accidentOf(err, t.start.Version, reached)
	})
	return t.accident
}
