// Package schedule decides what a worker does next: roll out, train, evaluate, save or end. It is a state machine, a pure
// function of the settings and of the commands that were done. It does no I/O, reads no clock and draws no random
// numbers. So all workers of a run take the same decisions without a message, because their settings and events are
// equal. The worker carries the commands out.
package schedule

import "fmt"

// Settings are the settings of a run on which the course depends.
type Settings struct {
	Steps           int64 // total number of training steps
	CheckpointEvery int64 // steps between checkpoints; 0: only one at the end
	EvalEvery       int64 // steps between evaluations; 0: only one at the end
	EvalFirst       bool  // version 0 is evaluated, too
	HeldOut         bool  // the task has held-out queries; without them nothing is evaluated
	ColdStarts      bool  // an agent has a cold start, so that version 0 gets a checkpoint
	MaxLag          int64 // steps that rollouts may be ahead of training
}

// State is the state of a worker between two commands. Begin returns the first state.
type State struct {
	Version   int64 // training steps committed
	Rolled    int64 // steps rolled out; at least Version, at most Version + MaxLag + 1
	Saved     int64 // newest version that has a checkpoint; None
	Evaluated int64 // newest version whose evaluation is complete; None
	Best      int64 // version with the best evaluation; None
	Noted     int64 // newest version whose evaluation is in its checkpoint; None

	Taught   bool // the cold start is done
	Ready    bool // all workers were ready to begin
	Stopping bool // the run was asked to stop, so the next step has no queries
	Over     bool // all workers have finished
}

// None stands for no version.
const None = -1

// Begin is the first state of a round: the start of the run (saved is None), or a checkpoint. evaluated and best are the
// evaluations in the checkpoint.
func Begin(saved, evaluated, best int64) State {
	return State{Version: max(saved, 0), Rolled: max(saved, 0), Saved: saved, Taught: saved != None,
		Evaluated: evaluated, Best: best, Noted: evaluated}
}

// Kind is the kind of a command.
type Kind string

// The kinds of commands, in the order of a run's first steps. A command that involves other workers is given to all of
// them.
const (
	Teach    Kind = "teach"    // do the cold start, if this agent has one
	Meet     Kind = "meet"     // wait until all are ready
	Save     Kind = "save"     // save a checkpoint, or add the evaluation to the existing one
	Evaluate Kind = "evaluate" // evaluate the held-out queries
	Train    Kind = "train"    // train on the rollouts of a step
	Await    Kind = "await"    // wait for the rollouts of the next step
	Finish   Kind = "finish"   // wait until all have finished
	End      Kind = "end"      // the run is over
)

// Command is a command to a worker.
type Command struct {
	Kind    Kind
	Version int64 // version to save, to evaluate, or to train from
}

// Result is the result of a command.
type Result struct {
	Best bool // of Evaluate: the version is better than all before
	Stop bool // the run was asked to stop: after Teach and Meet it ends; in Evaluate and rollouts there were no queries
}

// Next is the next command, beside rollouts. It stays the same until Done.
func (c Settings) Next(s State) Command {
	v := s.Version
	switch {
	case s.Over:
		return Command{End, v}
	case !s.Taught:
		return Command{Teach, v}
	case !s.Ready:
		return Command{Meet, v}
	case s.Saved < v && c.savesAt(v):
		return Command{Save, v}
	case c.evaluates(s, v) && !s.Stopping:
		return Command{Evaluate, v} // the engine is idle: RollOut begins no rollouts of version v before
	case s.Evaluated == v && s.Noted < v && (s.Saved == v || s.Best == v && v > 0):
		return Command{Save, v}
	case v < c.Steps && s.Rolled > v:
		return Command{Train, v}
	case v < c.Steps && !s.Stopping:
		return Command{Await, v}
	case s.Saved < v:
		return Command{Save, v}
	}
	return Command{Finish, v}
}

// RollOut says whether the rollouts of a step may begin now, and of which step. Only one step is rolled out at a time: the
// caller asks again after Rolled.
func (c Settings) RollOut(s State) (step int64, ok bool) {
	n := s.Rolled
	if s.Over || !s.Ready || s.Stopping || n >= c.Steps || n > s.Version+c.MaxLag {
		return 0, false
	}
	for v := s.Version; v <= n; v++ { // an evaluation and its checkpoint come before the step
		if c.evaluates(s, v) {
			return 0, false
		}
	}
	if c.Next(s).Kind == Save {
		return 0, false
	}
	return n, true
}

// Rolled is the state after the rollouts of a step.
func (c Settings) Rolled(s State, step int64, r Result) (State, error) {
	if step != s.Rolled {
		return s, fmt.Errorf("course: step %d was rolled out, but step %d is next", step, s.Rolled)
	}
	if r.Stop {
		s.Stopping = true
		return s, nil
	}
	s.Rolled++
	return s, nil
}

// Done is the state after a command, which must be that of Next.
func (c Settings) Done(s State, did Command, r Result) (State, error) {
	if next := c.Next(s); did != next {
		return s, fmt.Errorf("course: command %v was done, but %v is next", did, next)
	}
	switch did.Kind {
	case Teach, Meet:
		if r.Stop { // there is no version yet that all have
			s.Stopping, s.Over = true, true
			return s, nil
		}
		s.Taught, s.Ready = true, did.Kind == Meet
	case Save:
		s.Saved = did.Version
		if s.Evaluated == did.Version {
			s.Noted = did.Version
		}
	case Evaluate:
		if s.Stopping = r.Stop; r.Stop {
			return s, nil
		}
		s.Evaluated = did.Version
		if r.Best {
			s.Best = did.Version
		}
	case Train:
		s.Version++
	case Finish:
		s.Over = true
	default:
		return s, fmt.Errorf("course: %s is not a command that can be done", did.Kind)
	}
	return s, nil
}

// savesAt says whether a version gets a checkpoint whatever its evaluation is. It is saved before the evaluation, so that
// a crash in the evaluation does not lose the training. A cold start is training, too.
func (c Settings) savesAt(v int64) bool {
	if v == 0 {
		return c.ColdStarts
	}
	return v == c.Steps || c.CheckpointEvery > 0 && v%c.CheckpointEvery == 0
}

// evaluates says whether a version must still be evaluated. The last version always is, and no version twice.
func (c Settings) evaluates(s State, v int64) bool {
	switch {
	case !c.HeldOut || s.Evaluated == v:
		return false
	case v == c.Steps:
		return true
	case v == 0:
		return c.EvalFirst
	}
	return c.EvalEvery > 0 && v%c.EvalEvery == 0
}
