package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// TrainOptions are the options of Train in addition to the configuration. The zero value trains all agents from the beginning.
type TrainOptions struct {
	Agents   []string             // agents that this process runs; the others run in processes with the same store.url; nil: all
	Resume   bool                 // continue from the newest complete checkpoint
	Stop     <-chan struct{}      // closed to end the run after the current step, with a checkpoint; may be nil
	Task     task.Task            // replaces the configured task; may be nil
	Terms    map[string]term.Term // loss terms of the program's own, by agent (docs/library.md); may be nil
	Observer metrics.Observer     // receives records and notes; may be nil
}

// agentsOf returns the names of the agents to run in this process: the given ones, or all.
func agentsOf(cfg *config.Config, names []string) []string {
	if names == nil {
		return cfg.AgentNames()
	}
	return names
}

// roundState holds the data of Train that a round needs in addition to the options.
type roundState struct {
	hooks    hooks                       // the parts of this process that follow the team
	again    bool                        // a round of this process has ended
	before   retryCause                  // the cause of the previous round's end
	machines map[string]*launch.Machines // further machines with devices for agents, by agent
	files    map[string]string           // digests of the run's inputs when the process started; nil after the first round
}

// ErrStopped is the error of a run that ended before its last step or evaluation because a stop was requested. The run left
// a checkpoint, unless there was no step to finish or the other workers were missing.
var ErrStopped = worker.ErrStopped

// Resumable reports whether the same command can continue a run that ended with this error:
//   - a stop was requested, here or at another worker;
//   - a worker, a further machine or a sampling server did not appear in time;
//   - a GPU was lost for the first time at its version, and a new process is needed; or
//   - a follower was lost again.
func Resumable(err error) bool { return worker.Resumable(err) }

// Train runs agents of a team until the configured last step. With every agent in one process and without store.url, the
// store is embedded; otherwise it is the Redis that the agents share.
//
// A worker is the part of the run that trains one agent. If one is lost, the run's current round ends on all servers
// and the next begins: the team goes back to the newest state that all agents share and repeats the steps after it.
// An agent with several devices has followers, which compute with the further devices. A worker that loses one of its
// followers ends the round, too, and registers in the store again.
//
// If the configuration has a gateway, Train listens at its address, where the health and the metrics of the run are, too.
//
// The error is nil if the agents were trained until the last step, and ErrNothingTrained if no step changed
// a weight. It is ErrRunComplete if there was nothing left to train, and ErrStopped if a stop was requested.
// Resumable reports for these and for all other errors whether Train can continue with TrainOptions.Resume.
func Train(ctx context.Context, cfg *config.Config, opt TrainOptions) error {
	if !cfg.HasGateway() {
		return train(ctx, cfg, opt, hooks{})
	}
	server, gateway, err := listen(cfg, opt.Agents)
	if err != nil {
		return err
	}
	defer server.Close()
	opt.Observer = metrics.Observers{observed(opt.Observer), server}
	return train(ctx, cfg, opt, hooks{gateway: gateway, server: server})
}

// train trains like Train, with hooks of this process. If the configuration has a gateway, h has one.
func train(ctx context.Context, cfg *config.Config, opt TrainOptions, h hooks) (err error) {
	if err = errors.Join(config.CheckAgents(cfg, opt.Agents), checkTerms(cfg, opt.Terms)); err != nil {
		return err
	}
	opt.Observer = observed(opt.Observer)
	done := make(chan struct{})
	defer close(done)
	machines := map[string]*launch.Machines{}
	defer func() { dismissMachines(ctx, machines, err) }()
	// Only one worker of each agent can register in the store, so the workers may share the folder.
	locked, release, err := lockFolder(ctx, "run.dir", cfg.RunDir(), sharing("the run "+cfg.Run.Name, cfg.Store.URL != ""), opt.Observer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err = opt.listenForMachines(cfg, machines, done); err != nil {
		return err
	}
	if opt.Task == nil {
		names := agentsOf(cfg, opt.Agents)
		if opt.Task, err = assemble.OpenTask(cfg, len(names)); err != nil {
			return err
		}
		defer task.Close(opt.Task)
		// Check the programs and modules that score answers now: without this, an error appears only after the cold start.
		if err = assemble.CheckVerifiers(locked, cfg, opt.Task, assemble.ScoredHere(cfg, names)); err != nil {
			return err
		}
	}
	files, err := assemble.InputFiles(cfg)
	if err != nil {
		return err
	}
	err = errors.New("the worker panicked") // the error for the machines if trainRounds does not return
	err = trainRounds(locked, cfg, opt, roundState{hooks: h, machines: machines, files: files})
	return err
}

// trainRounds takes part in rounds of the run until one ends for a reason that a further round does not change.
func trainRounds(ctx context.Context, cfg *config.Config, opt TrainOptions, state roundState) error {
	for {
		cause, err := trainRound(ctx, cfg, opt, state)
		switch {
		case ctx.Err() != nil:
			return err
		case cause.mayRetry(state.before):
			state.before = cause
		case cause != retryCause{}:
			return fmt.Errorf("%w, for the second time at version %d", err, cause.version)
		case worker.Classify(err) != worker.RoundOver:
			return err
		}
		opt.Observer.Note(metrics.Infof("", metrics.TopicStart, "going back: %v", err))
		opt.Resume, state.again, state.files = true, true, nil
	}
}

// observed returns o, or an observer that discards everything if o is nil.
func observed(o metrics.Observer) metrics.Observer {
	if o == nil {
		return metrics.Observers{}
	}
	return o
}

// trainRound takes part in one round of the run. It returns the cause that ended it, if there was one. The same
// cause as in the round before ends the run.
func trainRound(ctx context.Context, cfg *config.Config, opt TrainOptions, state roundState) (cause retryCause, err error) {
	own := *cfg // a copy: the round sets Run.Date, and keepDecaySteps sets DecaySteps
	own.Agents = slices.Clone(cfg.Agents)
	cfg = &own
	s := trainingGroupOptions(cfg, opt, state)
	s.offers.read = func() ([]archive.Manifest, []metrics.Note, error) {
		points, notes, err := startingPoints(cfg, opt, state.files)
		if state.again { // the first round has reported the notes
			notes = nil
		}
		return points, notes, err
	}
	if err := s.offers.renew(s.options.Dir); err != nil { // before the folder is made, so that a run that may not begin does not create it
		return cause, err
	}
	if s.date, err = dateOf(cfg, opt.Resume); err != nil {
		return cause, err
	}
	if err := durable.MkdirAll(durable.OS{}, s.options.Dir); err != nil {
		return cause, err
	}
	opening, opened := untilStopped(ctx, opt.Stop)
	group, err := openWorkerGroup(opening, s)
	opened()
	if err != nil {
		return group.cause, err
	}
	// Write this after the team has agreed: a resuming process compares its settings with this file.
	err = durable.ReplaceFile(filepath.Join(s.options.Dir, configFile), cfg.Dump(s.options.Dir))
	if err = errors.Join(err, saveInputs(s.options.Dir, state.files)); err != nil {
		return cause, group.giveUp(ctx, fmt.Errorf("saving the run's configuration: %w", err))
	}
	err = group.forEachWorker(ctx, (*worker.Worker).Run)
	switch {
	case err != nil:
	case slices.ContainsFunc(group.workers, (*worker.Worker).Stopped):
		err = ErrStopped
	default:
		err = group.checkTrained(opt.Observer)
	}
	return group.cause, errors.Join(err, group.close(context.WithoutCancel(ctx)))
}

// untilStopped returns a context that ends with ErrStopped when a stop is requested, until done is called. It bounds the waits for
// other workers before the first step, when a stop need not wait for the end of a step.
func untilStopped(parent context.Context, stop <-chan struct{}) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(parent)
	closed := make(chan struct{})
	go func() {
		select {
		case <-stop:
			cancel(ErrStopped)
		case <-closed:
		}
	}()
	return ctx, func() {
		close(closed)
		cancel(nil)
	}
}

// checkTerms refuses loss terms for agents that cannot have one. Agents of other processes are checked, too.
func checkTerms(cfg *config.Config, terms map[string]term.Term) error {
	for _, name := range slices.Sorted(maps.Keys(terms)) {
		if !slices.Contains(cfg.AgentNames(), name) {
			return fmt.Errorf("trainer: TrainOptions.Terms: the team has no agent %s", name)
		}
		a, value := cfg.Agent(name), reflect.ValueOf(terms[name])
		switch {
		case !value.IsValid() || value.Kind() == reflect.Pointer && value.IsNil():
			return fmt.Errorf("trainer: TrainOptions.Terms: the loss term of agent %s is nil", name)
		case a.Model.Endpoint != nil || !cfg.Learns(a):
			return cfg.Fault("agents."+name, errors.New("the agent is not trained, so it cannot have a loss term (TrainOptions.Terms)"))
		case len(a.Ranks()) > 1:
			return cfg.Fault("agents."+name+".devices", errors.New("an agent with several devices cannot have a loss term (TrainOptions.Terms): "+
				"the term's own parameters exist in one process only"))
		}
	}
	return nil
}

// sharing returns the Sharing of a process that does the work alone or with others.
func sharing(work string, withOthers bool) durable.Sharing {
	if withOthers {
		return durable.Sharing(work)
	}
	return durable.Exclusive
}

// lockFolder locks a folder against other processes until release is called; what names the folder in errors. The
// returned context ends if another process takes the folder over because it considered this one dead. A folder in which
// this process cannot write is not locked.
func lockFolder(parent context.Context, what, dir string, s durable.Sharing, o metrics.Observer) (ctx context.Context, release func() error, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	waiting := func(why string) { o.Note(metrics.Infof("", metrics.TopicWaiting, "%s %s", what, why)) }
	l, err := durable.AcquireLock(ctx, dir, s, filepath.Base(os.Args[0]), waiting, func(err error) { cancel(fmt.Errorf("%s %w", what, err)) })
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return ctx, func() error { cancel(nil); return nil }, nil
	}
	if err != nil {
		cancel(nil)
		return parent, nil, fmt.Errorf("%s %w", what, err)
	}
	return ctx, func() error { cancel(nil); return l.Release() }, nil
}
