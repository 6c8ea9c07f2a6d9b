// Package course is the course of a run as one worker lives it, as a state machine: what comes next is a
// function of the settings and of what has happened. It does no I/O, knows no clock and draws no random
// numbers, so all workers of a run, which share settings and events, take the same course without a word
// about it; the worker carries out what it says.
package course

import "fmt"

// Settings of a run that its course depends on.
type Settings struct {
	Steps           int64 // training steps in all
	CheckpointEvery int64 // a checkpoint every so many steps; 0: at the end alone
	EvalEvery       int64 // an evaluation every so many steps; 0: at the end alone
	EvalFirst       bool  // version 0 is evaluated too
	HeldOut         bool  // the task has held-out queries; else nothing is ever evaluated
	ColdStarts      bool  // an agent has a cold start, so that version 0 is worth a checkpoint
	MaxLag          int64 // steps that rollouts may be ahead of training
}

// State is where a worker stands between commands. Begin makes one.
type State struct {
	Version   int64 // training steps committed
	Rolled    int64 // steps rolled out; at least Version, at most Version + MaxLag + 1
	Saved     int64 // newest version that has a checkpoint; None
	Evaluated int64 // newest version that was evaluated to the end; None
	Best      int64 // version with the best evaluation; None
	Noted     int64 // newest version whose evaluation its checkpoint knows of; None

	Taught   bool // the cold start is behind
	Ready    bool // all workers were
	Stopping bool // the next step has no queries: the run was asked to stop
	Over     bool // all workers are through
}

// None is no version.
const None = -1

// Begin is the state in which a round starts: from the very beginning (saved is None), or from a checkpoint
// that knows of the evaluations evaluated and best.
func Begin(saved, evaluated, best int64) State {
	return State{Version: max(saved, 0), Rolled: max(saved, 0), Saved: saved, Taught: saved != None,
		Evaluated: evaluated, Best: best, Noted: evaluated}
}

// Kind is what a command asks for.
type Kind string

// What a worker does between rollouts, in the order in which a run does it first. Whatever involves other workers is
// commanded to all of them.
const (
	Teach    Kind = "teach"    // the cold start, if this agent has one
	Meet     Kind = "meet"     // wait until all are ready
	Save     Kind = "save"     // a checkpoint, or what its evaluation was into the one that is there
	Evaluate Kind = "evaluate" // hold out
	Train    Kind = "train"    // learn from what was rolled out
	Await    Kind = "await"    // nothing before the rollouts of the next step are done
	Finish   Kind = "finish"   // wait until all are through
	End      Kind = "end"      // the run is over
)

// Command is what comes next, of a version.
type Command struct {
	Kind    Kind
	Version int64 // saved, evaluated, or trained from
}

// Result is what a worker learned by carrying a command out.
type Result struct {
	Best bool // Evaluate: better than every evaluation before
	Stop bool // the run was asked to stop: Teach, Meet: it ends here; Evaluate, rollouts: there were no queries
}

// Next is what comes next beside rollouts. Calling it again gives the same command until Done.
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
		return Command{Evaluate, v} // the engine is idle: RollOut holds the step of version v back
	case s.Evaluated == v && s.Noted < v && (s.Saved == v || s.Best == v && (v > 0 || c.ColdStarts)):
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

// RollOut says whether the rollouts of a step are to begin, and of which one. At most one step rolls out at a
// time; the caller asks again when it has told Rolled of the last.
func (c Settings) RollOut(s State) (step int64, ok bool) {
	n := s.Rolled
	if s.Over || !s.Ready || s.Stopping || n >= c.Steps || n > s.Version+c.MaxLag {
		return 0, false
	}
	for v := s.Version; v <= n; v++ { // an evaluation, and the checkpoint that knows of it, come before the step
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
		return s, fmt.Errorf("course: rolled out step %d, and the next is %d", step, s.Rolled)
	}
	if r.Stop {
		s.Stopping = true
		return s, nil
	}
	s.Rolled++
	return s, nil
}

// Done is the state after a command, which must be the one that Next says.
func (c Settings) Done(s State, did Command, r Result) (State, error) {
	if next := c.Next(s); did != next {
		return s, fmt.Errorf("course: did %v where %v was to be done", did, next)
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
		return s, fmt.Errorf("course: %s is nothing that can be done", did.Kind)
	}
	return s, nil
}

// savesAt says whether a version is kept whatever its evaluation says, and before that: what was trained is
// not to be lost in it.
func (c Settings) savesAt(v int64) bool {
	return v > 0 && (v == c.Steps || c.CheckpointEvery > 0 && v%c.CheckpointEvery == 0)
}

// evaluates says whether a version is still to be evaluated. The last version always is; nothing is twice.
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
