package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/show/dashboard"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// workerGroup holds the workers of this process in a round of the run, and the data they share.
type workerGroup struct {
	groupOptions
	store   *store.Store
	members []*store.Member // the places of the agents here
	start   store.Start
	workers []*worker.Worker

	first sync.Once
	cause retryCause // the cause of the first error; see recordCause
}

// groupOptions holds the options of openWorkerGroup.
type groupOptions struct {
	options worker.Options
	hooks   hooks
	offers  offeredCheckpoints // the available checkpoints
	date    string             // YYYY-MM-DD, the date of the run, if this process has it
	before  retryCause         // the cause of the previous round's end
}

// hooks are the gateway, the health server and the page of this process. In each round the group reports its workers to them. Each may
// be nil.
type hooks struct {
	gateway    *processGateway // gives programs access to the agents
	server     *health.Server  // publishes the workers' state
	page       *dashboard.Page // shows the running training
	beforeLoad func()          // called once a round, after all checks and before models are loaded
}

// trainingGroupOptions returns the options of a group that trains. The caller sets date and offers.
func trainingGroupOptions(cfg *config.Config, opt TrainOptions, state roundState) groupOptions {
	process := &assemble.Process{Agents: agentsOf(cfg, opt.Agents), Machines: state.machines}
	return groupOptions{
		options: worker.Options{Config: cfg, Dir: cfg.RunDir(), Task: opt.Task, Observer: opt.Observer, Process: process,
			Gateway: state.hooks.gateway != nil, Terms: opt.Terms, Stop: opt.Stop},
		hooks: state.hooks, before: state.before,
	}
}

// openWorkerGroup takes the agents' places in the run, agrees with the other servers on the state to continue from, and
// loads it. opt.offers holds the available states. If openWorkerGroup fails, only the cause of the returned group may be used.
func openWorkerGroup(ctx context.Context, opt groupOptions) (*workerGroup, error) {
	g := &workerGroup{groupOptions: opt}
	options, err := assemble.StoreOptions(opt.options.Config)
	if err != nil {
		return g, err
	}
	if options.URL == "" && len(opt.options.Process.Agents) < len(opt.options.Config.AgentNames()) {
		return g, fmt.Errorf("store.url is not set: agents in separate processes need a Redis")
	}
	if opt.options.NoTraining {
		options.Aside = store.Evaluation
	}
	options.Waiting = func(what string) { opt.options.Observer.Note(metrics.Infof("", metrics.TopicWaiting, "%s", what)) }
	if g.store, err = store.Open(ctx, options); err != nil {
		return g, err
	}
	if err = g.enter(ctx); err == nil {
		err = g.load(ctx)
	}
	if cause := context.Cause(ctx); errors.Is(err, context.Canceled) && errors.Is(cause, ErrStopped) {
		err = cause // context.Canceled does not contain a reason
	}
	if err != nil {
		return g, g.giveUp(ctx, err)
	}
	return g, nil
}

// giveUp publishes the reason why this process does not take part, and leaves its places.
func (g *workerGroup) giveUp(ctx context.Context, err error) error {
	for _, m := range g.members {
		g.breakOff(ctx, m, err)
	}
	return errors.Join(err, g.close(context.WithoutCancel(ctx)))
}

// enter joins the run for all agents of this process and sets the state from which it starts. When the process has its
// places, enter reads the states of g.offers again.
func (g *workerGroup) enter(ctx context.Context) error {
	deterministic, err := assemble.Deterministic(g.options.Config)
	if err != nil {
		return err
	}
	// A program may behave differently the second time, so a lost worker's rollouts cannot be repeated. Nor can
	// rollouts that were made ahead with earlier weights: a worker that continues at a version has only the weights of
	// that version.
	deterministic = deterministic && !g.options.Config.PlayedByProgram() && g.options.Config.GRPO.MaxLag == 0
	shared := g.options.Config.Shared()
	if g.options.NoTraining { // all have the same checkpoint and start from it
		shared["checkpoint"] = fmt.Sprintf("step %d, %s", g.offers.points[0].Step, g.offers.points[0].Digest)
	}
	files, err := assemble.TaskFiles(g.options.Config)
	if err != nil {
		return err
	}
	for key, digest := range files {
		shared["contents of "+key] = digest
	}
	request := store.JoinRequest{Config: shared, Agents: g.options.Config.AgentNames(), Deterministic: deterministic, Renew: g.currentOffers}
	for _, name := range g.options.Process.Agents {
		m, err := g.store.Join(ctx, name, request, func(what string) {
			g.options.Observer.Note(metrics.Infof(name, metrics.TopicWaiting, "waits: %s", what))
		})
		if errors.Is(err, store.ErrRunComplete) {
			return completeError(g.options.Config, g.offers.points[0])
		}
		if err != nil {
			return err
		}
		g.members = append(g.members, m)
	}
	for _, m := range g.members {
		var err error
		if g.start, err = m.Round.Start(ctx); err != nil {
			return err
		}
	}
	if date := g.options.Config.Run.Date; date != "" && date != g.start.Date {
		return fmt.Errorf("run.date is %s here, but %s for the main agent's worker: give all workers the same date, or only the main agent's worker", date,
			g.start.Date)
	}
	g.options.Config.Run.Date = g.start.Date
	return nil
}

// currentOffers returns the states from which a worker can start now. runComplete reports whether nothing is left to do after the newest
// of them.
func (g *workerGroup) currentOffers() (offers []store.Offer, runComplete bool, err error) {
	if err := g.offers.renew(g.options.Dir); err != nil {
		return nil, false, err
	}
	at := g.offers.points
	return archive.StoreOffers(at, g.date), !g.options.NoTraining && len(at) > 0 && complete(g.options.Config, at[0], g.options.Task), nil
}

// load checks the devices, sets newer checkpoints aside, opens the workers with the state from which the team starts, and
// opens the gateway. If that state is the end of the run, it waits for the other agents and returns ErrRunComplete.
func (g *workerGroup) load(ctx context.Context) error {
	at := g.offers.points
	if i := slices.IndexFunc(at, func(m archive.Manifest) bool { return m.Step == g.start.Version && m.Digest == g.start.Digest }); i >= 0 {
		g.options.From = &at[i]
	}
	if g.options.From == nil && g.start.Version != store.FromStart { // otherwise all checkpoints would be renamed
		return fmt.Errorf("the checkpoint of version %d, from which the team continues, is no longer in %s", g.start.Version,
			archive.CheckpointsDir(g.options.Dir))
	}
	if g.options.From != nil && !g.options.NoTraining && complete(g.options.Config, *g.options.From, g.options.Task) {
		// All workers reach this together.
		if err := g.finish(ctx); err != nil {
			return err
		}
		return completeError(g.options.Config, *g.options.From)
	}
	// All devices, before the first worker opens: run.matmul and the instruction set are global to the process.
	for _, m := range g.members {
		err := assemble.CheckFiles(g.options.Config, g.options.Config.Agent(m.Agent()))
		if err == nil {
			err = assemble.SelfTest(ctx, g.options.Config, g.options.Config.Agent(m.Agent()), func(text string) {
				g.options.Observer.Note(metrics.Warnf(m.Agent(), metrics.TopicSettings, "%s", text))
			})
		}
		if err != nil {
			return g.withRemedy(m.Agent(), g.start.Version, err)
		}
	}
	if g.hooks.beforeLoad != nil {
		g.hooks.beforeLoad()
	}
	if !g.options.NoTraining {
		if err := g.goBack(ctx); err != nil {
			return err
		}
	}
	for _, m := range g.members {
		w, err := worker.Open(ctx, g.options, m)
		if err != nil {
			return g.withRemedy(m.Agent(), g.start.Version, err)
		}
		g.workers = append(g.workers, w)
		g.hooks.server.Joined(w.Name(), w.Probe(), m)
		g.hooks.page.Joined(w.Name(), w.Probe(), m)
	}
	return g.openGateway(ctx)
}

// finish waits at the last barrier, for the agents of this process, until all agents have finished the run.
func (g *workerGroup) finish(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	for _, m := range g.members {
		eg.Go(func() error { return m.Round.Barrier(ctx, store.Finished, func([]string) {}) })
	}
	return eg.Wait()
}

// forEachWorker runs f for every worker concurrently. The first error stops the others, here and on other servers. If there are
// several errors, it returns one that is not the consequence of another.
func (g *workerGroup) forEachWorker(ctx context.Context, f func(*worker.Worker, context.Context) error) error {
	eg, gctx := errgroup.WithContext(ctx)
	errs := make([]error, len(g.workers))
	for i, w := range g.workers {
		eg.Go(func() error {
			errs[i] = inPlace(gctx, w, f)
			if errs[i] == nil {
				g.releasePlace(ctx, w.Member())
				return nil
			}
			errs[i] = fmt.Errorf("agent %s: %w", w.Name(), g.withRemedy(w.Name(), w.Parts().Policy.Version(), errs[i]))
			g.breakOff(ctx, w.Member(), errs[i])
			return errs[i]
		})
	}
	err := eg.Wait()
	var stop *store.StopError // the form in which other workers receive an error, which may come from this process
	if !errors.As(err, &stop) {
		return err
	}
	for _, e := range errs {
		if e != nil && !errors.As(e, &stop) {
			return e
		}
	}
	return err
}

// withRemedy returns the error of an agent that has reached a version, with a remedy if memory ran out. If the process is about
// to end, it also records the loss of a GPU.
func (g *workerGroup) withRemedy(name string, version int64, err error) error {
	err = withMemoryRemedy(g.options.Config, g.options.Task, name, err)
	if g.recordCause(name, err).mayRetry(g.before) { // this process begins a new round without a restart
		return err
	}
	return recordLostGPU(g.options.Dir, name, version, err)
}

// inPlace runs f with a context that ends with the round and with the worker's place in it.
func inPlace(ctx context.Context, w *worker.Worker, f func(*worker.Worker, context.Context) error) error {
	ctx, cancel := store.WithPlace(ctx, w.Member().Context())
	defer cancel()
	err := f(w, ctx)
	if errors.Is(err, context.Canceled) { // context.Canceled does not contain a reason
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
	}
	return err
}

// releaseTimeout limits the wait for a store that must receive the end of a round or the release of a place. Without a
// release the lease expires.
const releaseTimeout = 5 * time.Second

// breakOff publishes the reason why the round ends, and leaves the round.
func (g *workerGroup) breakOff(ctx context.Context, m *store.Member, err error) {
	publishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	cause := g.recordCause(m.Agent(), err)
	switch {
	case worker.Classify(err) == worker.RoundOver, errors.Is(err, ErrRunComplete): // the others already have this information
	case errors.Is(err, ErrStopped): // the others need not stop
	case ctx.Err() != nil:
		_ = m.Round.Stop(publishing, store.Asked, "interrupted")
	case cause.class == worker.FollowerLost && cause.mayRetry(g.before): // the place is taken again, as after the end of this process
	case Resumable(err):
		_ = m.Round.Stop(publishing, store.Asked, err.Error())
	case cause.mayRetry(g.before):
		_ = m.Round.Stop(publishing, store.Rewind, err.Error())
	default:
		_ = m.Round.Stop(publishing, store.Failure, err.Error())
	}
	g.releasePlace(publishing, m)
}

// releasePlace gives up a place.
func (g *workerGroup) releasePlace(ctx context.Context, m *store.Member) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_ = m.Leave(ctx)
}

func (g *workerGroup) close(ctx context.Context) error {
	var errs []error
	if gw := g.hooks.gateway; gw != nil { // the round is over for the programs
		gw.server.BeginRound(gateway.Round{}, nil)
	}
	for _, w := range g.workers {
		errs = append(errs, w.Close(ctx))
	}
	return errors.Join(append(errs, g.store.Close())...)
}
