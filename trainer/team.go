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

// team holds the workers of this process in a round of the run, and the data they share.
type team struct {
	teamSpec
	store   *store.Store
	members []*store.Member // the places of the agents here
	start   store.Start
	workers []*worker.Worker

	first sync.Once
	cause retryCause // the cause of the first error; see recordCause
}

// teamSpec holds the data with which a team is opened.
type teamSpec struct {
	options worker.Options
	hooks   hooks
	offers  offeredCheckpoints // the available checkpoints
	date    string             // YYYY-MM-DD, the date of the run, if this process has it
	before  retryCause         // the cause of the previous round's end
}

// hooks are the gateway, the health server and the page of this process, to which the team reports its workers in each round. Each may
// be nil.
type hooks struct {
	gateway    *processGateway // gives programs access to the agents
	server     *health.Server  // publishes the workers' state
	page       *dashboard.Page // shows the running training
	beforeLoad func()          // called once a round, after all checks and before models are loaded
}

// teamSpecOf returns the data of a team that trains. The caller sets date and offers.
func teamSpecOf(cfg *config.Config, opt TrainOptions, state roundState) teamSpec {
	process := &assemble.Process{Agents: agentsOf(cfg, opt.Agents), Machines: state.machines}
	return teamSpec{
		options: worker.Options{Config: cfg, Dir: cfg.RunDir(), Task: opt.Task, Observer: opt.Observer, Process: process,
			Gateway: state.hooks.gateway != nil, Terms: opt.Terms, Stop: opt.Stop},
		hooks: state.hooks, before: state.before,
	}
}

// openTeam takes the agents' places in the run, agrees with the other servers on the state from which to continue, and
// loads it. s.offers holds the available states. If openTeam fails, only the cause of the returned team may be used.
func openTeam(ctx context.Context, s teamSpec) (*team, error) {
	t := &team{teamSpec: s}
	options, err := assemble.StoreOptions(s.options.Config)
	if err != nil {
		return t, err
	}
	if options.URL == "" && len(s.options.Process.Agents) < len(s.options.Config.AgentNames()) {
		return t, fmt.Errorf("store.url is not set: agents in separate processes need a Redis")
	}
	if s.options.NoTraining {
		options.Aside = store.Evaluation
	}
	options.Waiting = func(what string) { s.options.Observer.Note(metrics.Infof("", metrics.TopicWaiting, "%s", what)) }
	if t.store, err = store.Open(ctx, options); err != nil {
		return t, err
	}
	if err = t.enter(ctx); err == nil {
		err = t.load(ctx)
	}
	if cause := context.Cause(ctx); errors.Is(err, context.Canceled) && errors.Is(cause, ErrStopped) {
		err = cause // context.Canceled does not contain a reason
	}
	if err != nil {
		return t, t.giveUp(ctx, err)
	}
	return t, nil
}

// giveUp publishes the reason why this process does not take part, and leaves its places.
func (t *team) giveUp(ctx context.Context, err error) error {
	for _, m := range t.members {
		t.breakOff(ctx, m, err)
	}
	return errors.Join(err, t.close(context.WithoutCancel(ctx)))
}

// enter joins the run for all agents of this process and sets the state from which it starts. When the process has its
// places, enter reads the states of t.offers again.
func (t *team) enter(ctx context.Context) error {
	deterministic, err := assemble.Deterministic(t.options.Config)
	if err != nil {
		return err
	}
	// A program may behave differently the second time, so a lost worker's rollouts cannot be repeated. Nor can
	// rollouts that were made ahead with earlier weights: a worker that continues at a version has only the weights of
	// that version.
	deterministic = deterministic && !t.options.Config.PlayedByProgram() && t.options.Config.GRPO.MaxLag == 0
	shared := t.options.Config.Shared()
	if t.options.NoTraining { // all have the same checkpoint and start from it
		shared["checkpoint"] = fmt.Sprintf("step %d, %s", t.offers.points[0].Step, t.offers.points[0].Digest)
	}
	files, err := assemble.TaskFiles(t.options.Config)
	if err != nil {
		return err
	}
	for key, digest := range files {
		shared["contents of "+key] = digest
	}
	request := store.JoinRequest{Config: shared, Agents: t.options.Config.AgentNames(), Deterministic: deterministic, Renew: t.currentOffers}
	for _, name := range t.options.Process.Agents {
		m, err := t.store.Join(ctx, name, request, func(what string) {
			t.options.Observer.Note(metrics.Infof(name, metrics.TopicWaiting, "waits: %s", what))
		})
		if errors.Is(err, store.ErrRunComplete) {
			return completeError(t.options.Config, t.offers.points[0])
		}
		if err != nil {
			return err
		}
		t.members = append(t.members, m)
	}
	for _, m := range t.members {
		var err error
		if t.start, err = m.Round.Start(ctx); err != nil {
			return err
		}
	}
	if given := t.options.Config.Run.Date; given != "" && given != t.start.Date {
		return fmt.Errorf("run.date is %s here, but %s for the main agent's worker: give all workers the same date, or only the main agent's worker", given,
			t.start.Date)
	}
	t.options.Config.Run.Date = t.start.Date
	return nil
}

// currentOffers returns the states from which a worker can start now. runComplete reports whether nothing is left to do after the newest
// of them.
func (t *team) currentOffers() (offers []store.Offer, runComplete bool, err error) {
	if err := t.offers.renew(t.options.Dir); err != nil {
		return nil, false, err
	}
	at := t.offers.points
	return archive.StoreOffers(at, t.date), !t.options.NoTraining && len(at) > 0 && complete(t.options.Config, at[0], t.options.Task), nil
}

// load checks the devices, sets newer checkpoints aside, opens the workers with the state from which the team starts, and
// opens the gateway. If that state is the end of the run, it waits for the other agents and returns ErrRunComplete.
func (t *team) load(ctx context.Context) error {
	at := t.offers.points
	if i := slices.IndexFunc(at, func(m archive.Manifest) bool { return m.Step == t.start.Version && m.Digest == t.start.Digest }); i >= 0 {
		t.options.From = &at[i]
	}
	if t.options.From == nil && t.start.Version != store.FromStart { // otherwise all checkpoints would be renamed
		return fmt.Errorf("the checkpoint of version %d, from which the team continues, is no longer in %s", t.start.Version,
			archive.CheckpointsDir(t.options.Dir))
	}
	if t.options.From != nil && !t.options.NoTraining && complete(t.options.Config, *t.options.From, t.options.Task) {
		// All workers reach this together.
		if err := t.finish(ctx); err != nil {
			return err
		}
		return completeError(t.options.Config, *t.options.From)
	}
	// All devices, before the first worker opens: run.matmul and the instruction set are global to the process.
	for _, m := range t.members {
		err := assemble.CheckFiles(t.options.Config, t.options.Config.Agent(m.Agent()))
		if err == nil {
			err = assemble.SelfTest(ctx, t.options.Config, t.options.Config.Agent(m.Agent()), func(text string) {
				t.options.Observer.Note(metrics.Warnf(m.Agent(), metrics.TopicSettings, "%s", text))
			})
		}
		if err != nil {
			return t.withRemedy(m.Agent(), t.start.Version, err)
		}
	}
	if t.hooks.beforeLoad != nil {
		t.hooks.beforeLoad()
	}
	if !t.options.NoTraining {
		if err := t.goBack(ctx); err != nil {
			return err
		}
	}
	for _, m := range t.members {
		w, err := worker.Open(ctx, t.options, m)
		if err != nil {
			return t.withRemedy(m.Agent(), t.start.Version, err)
		}
		t.workers = append(t.workers, w)
		t.hooks.server.Joined(w.Name(), w.Probe(), m)
		t.hooks.page.Joined(w.Name(), w.Probe(), m)
	}
	return t.openGateway(ctx)
}

// finish waits at the last barrier, for the agents of this process, until all agents have finished the run.
func (t *team) finish(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range t.members {
		g.Go(func() error { return m.Round.Barrier(ctx, store.Finished, func([]string) {}) })
	}
	return g.Wait()
}

// forEachWorker runs f for every worker concurrently. The first error stops the others, here and on other servers. If there are
// several errors, it returns one that is not the consequence of another.
func (t *team) forEachWorker(ctx context.Context, f func(*worker.Worker, context.Context) error) error {
	g, gctx := errgroup.WithContext(ctx)
	errs := make([]error, len(t.workers))
	for i, w := range t.workers {
		g.Go(func() error {
			errs[i] = inPlace(gctx, w, f)
			if errs[i] == nil {
				t.releasePlace(ctx, w.Member())
				return nil
			}
			errs[i] = fmt.Errorf("agent %s: %w", w.Name(), t.withRemedy(w.Name(), w.Policy().Version(), errs[i]))
			t.breakOff(ctx, w.Member(), errs[i])
			return errs[i]
		})
	}
	err := g.Wait()
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
func (t *team) withRemedy(name string, version int64, err error) error {
	err = withMemoryRemedy(t.options.Config, t.options.Task, name, err)
	if t.recordCause(name, err).mayRetry(t.before) { // this process begins a new round without a restart
		return err
	}
	return recordLostGPU(t.options.Dir, name, version, err)
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
func (t *team) breakOff(ctx context.Context, m *store.Member, err error) {
	publishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	cause := t.recordCause(m.Agent(), err)
	switch {
	case worker.Classify(err) == worker.RoundOver, errors.Is(err, ErrRunComplete): // the others already have this information
	case errors.Is(err, ErrStopped): // the others need not stop
	case ctx.Err() != nil:
		_ = m.Round.Stop(publishing, store.Asked, "interrupted")
	case cause.class == worker.FollowerLost && cause.mayRetry(t.before): // the place is taken again, as after the end of this process
	case Resumable(err):
		_ = m.Round.Stop(publishing, store.Asked, err.Error())
	case cause.mayRetry(t.before):
		_ = m.Round.Stop(publishing, store.Rewind, err.Error())
	default:
		_ = m.Round.Stop(publishing, store.Failure, err.Error())
	}
	t.releasePlace(publishing, m)
}

// releasePlace gives up a place.
func (t *team) releasePlace(ctx context.Context, m *store.Member) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	_ = m.Leave(ctx)
}

func (t *team) close(ctx context.Context) error {
	var errs []error
	if g := t.hooks.gateway; g != nil { // the round is over for the programs
		g.server.BeginRound(gateway.Round{}, nil)
	}
	for _, w := range t.workers {
		errs = append(errs, w.Close(ctx))
	}
	return errors.Join(append(errs, t.store.Close())...)
}
