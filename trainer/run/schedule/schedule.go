// Package schedule decides the next action of a worker: roll out, train, evaluate, save or end. It is a state machine, a
// pure function of the settings and of the commands that were done. It does not do I/O, read a clock or draw random
// numbers. Commands that involve other workers depend only on settings and events that are equal for all workers, so the workers
// agree on them without exchanging messages. With MaxLag > 0 and without ExactLag, RolledOut depends on timing, and with it the command
// AwaitRollouts. The worker carries out the commands.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package schedule

import "fmt"

// Options holds the settings of a run on which the schedule depends.
type Options struct {
	Steps           int64 // total number of training steps
	CheckpointEvery int64 // steps between checkpoints; 0: only after a cold start, of the best version, at a stop and at the end
	EvalEvery       int64 // steps between evaluations; 0: only at the end and, with EvalFirst, of version 0
	EvalFirst       bool  // version 0 is also evaluated
	HasHeldOut      bool  // the task has held-out queries; without them nothing is evaluated
	ColdStarts      bool  // an agent has a cold start, so version 0 gets a checkpoint
	MaxLag          int64 // number of steps by which rollouts may be ahead of training
	ExactLag        bool  // rollouts that have begun end before the next command, so that the lag does not depend on their duration
}

// State is the state of a worker between two commands. Begin returns the first state.
type State struct {
	Version         int64 // number of committed training steps
	RolledOut       int64 // number of steps that were rolled out; at least Version, at most Version + MaxLag + 1
	Saved           int64 // newest version that has a checkpoint; or None
	Evaluated       int64 // newest version whose evaluation is complete; or None
	Best            int64 // version with the best evaluation; or None
	EvaluationSaved int64 // newest version whose evaluation is in its checkpoint; or None

	ColdStarted bool // the cold start is done
	Ready       bool // all workers are ready to begin
	Stopping    bool // the run was asked to stop, so the next step has no queries
	Over        bool // all workers have finished
}

// None stands for no version.
const None = -1

// Begin returns the first state of a round: the start of the run (saved = None), or a
// checkpoint. evaluated and best come from the evaluations in the checkpoint.
func Begin(saved, evaluated, best int64) State {
	return State{Version: max(saved, 0), RolledOut: max(saved, 0), Saved: saved, ColdStarted: saved != None,
		Evaluated: evaluated, Best: best, EvaluationSaved: evaluated}
}

// Kind is the kind of a command.
type Kind string

// The kinds of commands, in the order of a run's first steps. A command that involves other
// workers is given to every worker.
const (
	ColdStart     Kind = "cold start"     // do the cold start, if this agent has one
	AwaitTeam     Kind = "await team"     // wait until all are ready
	Save          Kind = "save"           // save a checkpoint, or add the evaluation to the existing one
	Evaluate      Kind = "evaluate"       // evaluate the held-out queries
	Train         Kind = "train"          // train on the rollouts of a step
	AwaitRollouts Kind = "await rollouts" // wait for the rollouts of the next step
	Finish        Kind = "finish"         // wait until all have finished
	End           Kind = "end"            // the run is over
)

// Command is a command to a worker.
type Command struct {
	Kind    Kind
	Version int64 // version to save, to evaluate, or to train from
}

// Result is the result of a command.
type Result struct {
	Best bool // after Evaluate: the version is better than all earlier ones
	Stop bool // the run was asked to stop: after ColdStart and AwaitTeam the run ends; Evaluate and rollouts had no queries
}

// Next returns the next command. Rollouts run in parallel and are not commands. The result depends on the options and the
// state alone.
func (o Options) Next(st State) Command {
	v := st.Version
	switch {
	case st.Over:
		return Command{End, v}
	case !st.ColdStarted:
		return Command{ColdStart, v}
	case !st.Ready:
		return Command{AwaitTeam, v}
	case st.Saved < v && o.savesAt(v):
		return Command{Save, v}
	case o.evaluates(st, v) && !st.Stopping:
		return Command{Evaluate, v} // the engine is idle: RollOut does not begin rollouts of version v before the evaluation
	case st.Evaluated == v && st.EvaluationSaved < v && (st.Saved == v || st.Best == v && v > 0):
		return Command{Save, v}
	case v < o.Steps && st.RolledOut > v:
		return Command{Train, v}
	case v < o.Steps && !st.Stopping:
		return Command{AwaitRollouts, v}
	case st.Saved < v:
		return Command{Save, v}
	}
	return Command{Finish, v}
}

// RollOut returns the step whose rollouts may begin now; ok is false if none may begin. Only one step is rolled out at a
// time: the caller asks again after RolledOut.
func (o Options) RollOut(st State) (step int64, ok bool) {
	n := st.RolledOut
	if st.Over || !st.Ready || st.Stopping || n >= o.Steps || n-st.Version > o.MaxLag {
		return 0, false
	}
	for v := st.Version; v <= n; v++ { // evaluations and their checkpoints precede the step
		if o.evaluates(st, v) {
			return 0, false
		}
	}
	if o.Next(st).Kind == Save {
		return 0, false
	}
	return n, true
}

// TakesRollouts reports whether the worker must collect the running rollouts, waiting if necessary, before it executes next. begun and
// complete report whether rollouts have begun and have ended.
func (o Options) TakesRollouts(next Command, begun, complete bool) bool {
	return next.Kind == AwaitRollouts || complete || begun && o.ExactLag
}

// RolledOut returns the state after the rollouts of a step.
func (o Options) RolledOut(st State, step int64, r Result) (State, error) {
	if step != st.RolledOut {
		return st, fmt.Errorf("schedule: step %d was rolled out, but step %d is next", step, st.RolledOut)
	}
	if r.Stop {
		st.Stopping = true
		return st, nil
	}
	st.RolledOut++
	return st, nil
}

// Done returns the state after a command, which must be the command that Next returned.
func (o Options) Done(st State, did Command, r Result) (State, error) {
	if next := o.Next(st); did != next {
		return st, fmt.Errorf("schedule: command %v was done, but %v is next", did, next)
	}
	switch did.Kind {
	case ColdStart, AwaitTeam:
		if r.Stop { // there is no version yet that all workers have
			st.Stopping, st.Over = true, true
			return st, nil
		}
		st.ColdStarted, st.Ready = true, did.Kind == AwaitTeam
	case Save:
		st.Saved = did.Version
		if st.Evaluated == did.Version {
			st.EvaluationSaved = did.Version
		}
	case Evaluate:
		if st.Stopping = r.Stop; r.Stop {
			return st, nil
		}
		st.Evaluated = did.Version
		if r.Best {
			st.Best = did.Version
		}
	case Train:
		st.Version++
	case Finish:
		st.Over = true
	default:
		return st, fmt.Errorf("schedule: %s is not a command that can be done", did.Kind)
	}
	return st, nil
}

// savesAt reports whether a version gets a checkpoint independently of its evaluation. It is saved before the evaluation,
// so that a crash during the evaluation does not lose the training. A cold start is also training.
func (o Options) savesAt(v int64) bool {
	if v == 0 {
		return o.ColdStarts
	}
	return v == o.Steps || o.CheckpointEvery > 0 && v%o.CheckpointEvery == 0
}

// evaluates reports whether a version must still be evaluated. The last version is always evaluated, and no version is
// evaluated twice.
func (o Options) evaluates(st State, v int64) bool {
	switch {
	case !o.HasHeldOut || st.Evaluated == v:
		return false
	case v == o.Steps:
		return true
	case v == 0:
		return o.EvalFirst
	}
	return o.EvalEvery > 0 && v%o.EvalEvery == 0
}
