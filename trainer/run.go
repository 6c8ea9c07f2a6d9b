package trainer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/health"
	"github.com/mgrpo/mgrpo/trainer/launch"
	"github.com/mgrpo/mgrpo/trainer/live"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/policy/remote"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Options of a run beside its configuration.
type Options struct {
	Agents   []string         // agents to run in this process; nil means all
	Resume   bool             // go on from the newest complete checkpoint
	Observer metrics.Observer // nil: nobody is told
	Health   *health.Server   // answers how the workers are; nil: nobody does
	Live     *live.Page       // shows the run while it goes on, and is among Observer; nil: none does
	Task     task.Task        // in place of the configured one; nil: that
	Gateway  *Gateway         // through which programs talk to the agents, if the configuration has one
	Stop     <-chan struct{}  // closed to end the run, all its agents, with a checkpoint after the step in flight, or in the cold start

	before   accident                    // that ended the round before
	machines map[string]*launch.Machines // that lend agents their devices, by agent
}

// agents are the names of the agents to run in this process.
func (o Options) agents(cfg *config.Config) []string {
	if o.Agents == nil {
		return cfg.AgentNames()
	}
	return o.Agents
}

// ErrStopped is a run that ended before its last step or evaluation because it was asked to: with a checkpoint,
// unless there was no step to finish or nobody to finish it with.
var ErrStopped = errors.New("stopped before the end, as asked; --resume goes on")

// Resumable says whether nothing is wrong with a run that ended with this error: somebody asked for it, here or at
// another worker, or somebody who was waited for, a worker or a server that samples, did not come, or a GPU was lost at a version for the first
// time and needs a new process, or a follower was lost again. The same command goes on.
func Resumable(err error) bool {
	var stop *store.StopError
	var late *store.TimeoutError
	var away *remote.AwayError
	var gpu *torch.LostError
	var follower *launch.LostError
	var machine *launch.AbsentError
	var over *launch.OverError
	return errors.Is(err, ErrStopped) || errors.As(err, &late) || errors.As(err, &away) || errors.As(err, &gpu) || errors.As(err, &follower) ||
		errors.As(err, &machine) || errors.As(err, &over) && over.Stopped || errors.As(err, &stop) && stop.Kind == store.Asked
}

// Train runs agents of a team until the configured last step. With every agent in one process and no
// store.url the store is embedded; else it is the Redis that the agents share.
//
// Where a worker was lost the team goes back to what all its agents share and does what came after again:
// a round of the run ends and the next begins, here as on the other servers. A worker that has lost a follower, a process of its own,
// leaves its place and takes it again, as if it had been lost itself and started again.
func Train(ctx context.Context, cfg *config.Config, opt Options) (err error) {
	opt.Observer = observed(opt.Observer)
	over := make(chan struct{})
	defer close(over)
	defer func() { opt.dismissMachines(ctx, err) }()
	ctx, release, err := holdFolder(ctx, "run.dir", cfg.RunDir(), sharing(cfg), opt.Observer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if err = opt.listenForMachines(cfg, over); err != nil {
		return err
	}
	if opt.Task == nil {
		names := opt.agents(cfg)
		if opt.Task, err = assemble.Task(cfg, len(names)); err != nil {
			return err
		}
		defer task.Close(opt.Task)
		// A program or a module that does not work is said now, and not after the cold start.
		if err = assemble.Scores(ctx, cfg, opt.Task, assemble.ScoredHere(cfg, names)); err != nil {
			return err
		}
	}
	err = errors.New("the worker's process failed") // what machines are told in a panic, which leaves no other
	for {
		this, err := trainRound(ctx, cfg, opt)
		switch {
		case ctx.Err() != nil:
			return err
		case this.mayPass(opt.before):
			opt.before = this
		case this.kind != "":
			return fmt.Errorf("%w, for the second time at version %d; --resume goes on where it was", err, this.version)
		case Resumable(err) || !store.Rewinds(err):
			return err
		}
		opt.Observer.Note(metrics.Infof("", metrics.TopicStart, "going back: %v", err))
		opt.Resume = true
	}
}

// observed is who is told what happens: nobody, if o is nil.
func observed(o metrics.Observer) metrics.Observer {
	if o == nil {
		return metrics.Observers{}
	}
	return o
}

// trainRound takes part in a round of the run. It returns the accident that ended it, if one did. The same as before ends the run.
func trainRound(ctx context.Context, cfg *config.Config, opt Options) (this accident, err error) {
	own := *cfg // with the date that the team agrees on
	cfg = &own
	dir := cfg.RunDir()
	offers := beginnings{dir: dir, read: func() ([]archive.Manifest, error) { return startingPoints(cfg, dir, opt) }}
	if err := offers.renew(); err != nil { // before the folder is made: a run that may not begin leaves nothing behind
		return this, err
	}
	if err := durable.MkdirAll(durable.OS{}, dir); err != nil {
		return this, err
	}
	opening, opened := untilStopped(ctx, opt.Stop)
	team, err := openTeam(opening, cfg, opt, setup{Dir: dir, Offers: offers, Date: dateOf(cfg, opt.Resume)})
	opened()
	if err != nil {
		return team.accident, err
	}
	// Not before the team has agreed: what is written here is held against the settings of whoever resumes.
	if err := durable.ReplaceFile(filepath.Join(dir, configFile), cfg.Dump(dir)); err != nil {
		return this, team.giveUp(ctx, fmt.Errorf("the run's configuration is not saved: %w", err))
	}
	err = team.each(ctx, (*worker).run)
	switch {
	case err != nil:
	case slices.ContainsFunc(team.workers, func(w *worker) bool { return w.stopped }):
		err = ErrStopped
	default:
		err = team.sum()
	}
	return team.accident, errors.Join(err, team.close(context.WithoutCancel(ctx)))
}

// untilStopped is a context that ends, because of ErrStopped, when a stop is asked for, until done is called:
// whatever waits for others before there is a step to finish waits no longer.
func untilStopped(parent context.Context, stop <-chan struct{}) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(parent)
	over := make(chan struct{})
	go func() {
		select {
		case <-stop:
			cancel(ErrStopped)
		case <-over:
		}
	}()
	return ctx, func() { close(over) }
}
