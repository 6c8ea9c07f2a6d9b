package assemble

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// ServeFollower checks whether a run started this process as a follower: the process of one of an agent's ranks above 0. If
// so, it executes the orders of rank 0 and does not return.
func ServeFollower() {
	if inbox := launch.Follower(); inbox != nil {
		exitFollower((&follower{inbox: inbox}).serve(context.Background()))
	}
}

// exitFollower ends the process of a follower with the exit status for err.
func exitFollower(err error) {
	fmt.Fprintln(os.Stderr, err)
	var lost *torch.LostError
	if errors.As(err, &lost) { // a new process can continue
		os.Exit(launch.GPULost)
	}
	os.Exit(1)
}

// follower holds the agent's model on its device, an engine, and its share of AdamW's moments. It communicates with the
// worker (rank 0) and the group of ranks only, and does not write files.
type follower struct {
	inbox  *launch.Inbox
	opt    AgentOptions
	parts  *AgentParts   // nil until the first order
	engine policy.Policy // nil until the first order to sample
}

// serve executes orders until one fails. The worker then ends its followers, and also when it ends itself.
func (f *follower) serve(ctx context.Context) error {
	for {
		order, batch, err := f.inbox.Next()
		if err != nil {
			return err
		}
		reply, err := f.executeOrder(ctx, order, batch)
		var lost *torch.LostError
		switch {
		case errors.As(err, &lost):
			return err
		case err != nil:
			reply = launch.Failed(err)
		}
		if err := errors.Join(err, f.inbox.Answer(reply)); err != nil {
			return err
		}
	}
}

// executeOrder executes this rank's part of an order that all ranks receive. The first order opens the model.
func (f *follower) executeOrder(ctx context.Context, o launch.Order, batch []*learner.Sequence) (r launch.Reply, err error) {
	p := f.parts
	if (p == nil) != (o.Kind == launch.Open) || f.engine == nil && o.Kind == launch.UpdateWeights {
		return r, fmt.Errorf("an order to %s came too early or twice", o.Kind)
	}
	switch o.Kind {
	case launch.Open:
		err = f.open(ctx, *o.Open)
	case launch.Join:
		if err = p.join(ctx, f.opt, *o.Group); err == nil {
			r.Digest, err = p.Learner.Rank0.State.Digest(ctx)
		}
	case launch.LoadReference:
		err = p.LoadReference(ctx, f.opt.Config, f.opt.Config.Agent(f.opt.Agent), o.Folder)
	case launch.Sample:
		if f.engine, err = openerOf(f.opt.Config, f.opt.Config.Agent(f.opt.Agent)).open(ctx, p, f.opt); err == nil {
			f.inbox.Sample(f.sample)
		}
	case launch.DigestWeights:
		r.Digest, err = p.digest(ctx)
	case launch.UpdateWeights:
		err = f.engine.UpdateWeights(ctx, o.Version)
	default:
		return p.Learner.ExecuteOrder(ctx, o, batch)
	}
	return r, err
}

// open checks the kernels of the device and loads the weights.
func (f *follower) open(ctx context.Context, o launch.OpenOrder) error {
	cfg, err := config.Parse("/follower.yaml", o.Config, nil)
	if err != nil {
		return err
	}
	if err = config.CheckAgents(cfg, []string{o.Agent}); err != nil {
		return err
	}
	a := cfg.Agent(o.Agent)
	if err = SelfTest(ctx, cfg, a, func(string) {}); err != nil { // rank 0 reports the kernels of this machine
		return err
	}
	f.opt = AgentOptions{Config: cfg, Agent: o.Agent, Weights: o.Weights, Learns: o.Learns, Process: &Process{Agents: []string{o.Agent}}}
	if o.Learns {
		f.opt.rank, f.opt.size, f.opt.gathered = o.Rank, o.Size, o.Gathered
	}
	cfg.Run.Threads = threads(cfg, o.SharingThreads)
	f.parts = &AgentParts{}
	err = f.parts.load(ctx, f.opt, a)
	if err != nil || o.Learns || o.Weights == "" {
		return err
	}
	params := f.parts.Params
	return archive.ReadMaster(o.Weights, params.Numel(), func(read func(from int64, dst []float32) error) error { return params.Restore(ctx, read) })
}

// sample samples a turn, concurrently with other turns and with orders.
func (f *follower) sample(ctx context.Context, r policy.Request) (t launch.Turn) {
	var err error
	t.Completion, err = f.engine.Generate(ctx, r)
	var lost *torch.LostError
	if errors.As(err, &lost) {
		exitFollower(err)
	}
	if t.Stats = f.engine.Stats(); err != nil && (ctx.Err() == nil || t.Finish != policy.FinishCancelled) {
		return launch.Turn{Reply: launch.Failed(err), Stats: t.Stats}
	}
	return t
}
