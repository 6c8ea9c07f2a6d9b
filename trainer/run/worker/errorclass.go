package worker

import (
	"errors"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// ErrorClass is the consequence of an error that ended a worker's round.
type ErrorClass int

// The classes of errors.
const (
	Fatal        ErrorClass = iota // the run has ended
	Interrupted                    // the same command can continue the run
	RoundOver                      // the team goes back to a checkpoint, or this worker was replaced: it may join the next round
	ValueDiffers                   // a worker's values differed from its predecessor's: another round may succeed
	FollowerLost                   // a follower was lost: another round may succeed, or the same command can continue the run
)

// Classify returns the class of an error.
func Classify(err error) ErrorClass {
	var conflict *store.ConflictError
	var follower *launch.LostError
	switch {
	case errors.As(err, &conflict):
		return ValueDiffers
	case errors.As(err, &follower):
		return FollowerLost
	case interrupted(err):
		return Interrupted
	case store.EndsRoundOnly(err):
		return RoundOver
	}
	return Fatal
}

// Resumable reports whether the same command can continue a run that ended with this error; trainer.Resumable lists the cases.
func Resumable(err error) bool {
	class := Classify(err)
	return class == Interrupted || class == FollowerLost
}

// interrupted reports whether a stop was requested, another part of the run did not appear in time, or a GPU was lost.
func interrupted(err error) bool {
	var stop *store.StopError
	var late *store.TimeoutError
	var away *remote.UnreachableError
	var gpu *torch.LostError
	var machine *launch.AbsentError
	var ended *launch.RunEndedError
	return errors.Is(err, ErrStopped) || errors.As(err, &late) || errors.As(err, &away) || errors.As(err, &gpu) || errors.As(err, &machine) ||
		errors.As(err, &ended) && ended.Stopped || errors.As(err, &stop) && stop.Kind == store.Asked
}
