package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/sandbox"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// ServeChild checks whether a run started this process as one of its children. If so, it does the child's work and
// does not return; otherwise it returns at once. A run starts its own program again in two cases. The tool python
// runs each program in a sandbox. An agent with several devices has a process, called a follower, for each device
// except the first. A program that trains or evaluates calls ServeChild first in main, and in TestMain.
func ServeChild() {
	sandbox.Serve()
	inbox := launch.Follower()
	if inbox == nil {
		return
	}
	exitFollower((&follower{inbox: inbox}).serve(context.Background()))
}

// exitFollower ends the process of a follower with the exit status for err.
func exitFollower(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, err)
	var lost *torch.LostError
	if errors.As(err, &lost) { // a new process can continue
		os.Exit(launch.GPULost)
	}
	os.Exit(1)
}

// follower is the process of one of an agent's ranks above 0. It holds the agent's model on its device, an engine, and its
// share of AdamW's moments. It communicates with the worker (rank 0) and the group of ranks only, and does not write files.
type follower struct {
	inbox      *launch.Inbox
	rank, size int
	wanted     assemble.AgentSpec
	*assemble.Parts
	engine   policy.Policy       // nil until the first order to sample
	prepared []*learner.Sequence // the batch of the current step
}

// serve executes orders until one fails. The worker then ends its followers, and also when it ends itself.
func (f *follower) serve(ctx context.Context) error {
	for {
		order, batch, err := f.inbox.Next()
		if err != nil {
			return err
		}
		reply, err := f.obey(ctx, order, batch)
		var lost *torch.LostError
		switch {
		case errors.As(err, &lost):
			return err
		case err != nil:
			reply = refusal(err)
		}
		if err := errors.Join(err, f.inbox.Answer(reply)); err != nil {
			return err
		}
	}
}

// refusal returns the reply for an order or a request that failed.
func refusal(err error) launch.Reply {
	var alone *torch.GroupError
	return launch.Reply{Error: err.Error(), Memory: outOfMemory(err), Alone: errors.As(err, &alone), Missing: errors.Is(err, fs.ErrNotExist)}
}

// obey executes this rank's part of an order that all ranks receive. The first order opens the model.
func (f *follower) obey(ctx context.Context, o launch.Order, batch []*learner.Sequence) (r launch.Reply, err error) {
	if (f.Parts == nil) != (o.Kind == launch.Open) || f.engine == nil && o.Kind == launch.UpdateWeights {
		return r, fmt.Errorf("an order to %s came too early or twice", o.Kind)
	}
	switch o.Kind {
	case launch.Open:
		err = f.open(ctx, *o.Open)
	case launch.Join:
		if err = f.Join(ctx, f.wanted, *o.Group, f.rank, f.size); err == nil {
			r.Digest, err = f.Learner.Digest(ctx)
		}
	case launch.Prepare:
		f.prepared = batch
		err = f.Learner.Prepare(ctx, batch)
	case launch.Update:
		err = f.update(ctx, o)
	case launch.ColdStartUpdate:
		f.set(o.AdamW)
		_, err = f.Learner.ColdStartUpdate(ctx, batch, o.AdamW.LR)
	case launch.Reset:
		err = f.Learner.ResetOptimizer(ctx)
	case launch.Gather:
		err = f.Learner.Copy(ctx, nil, nil, nil)
	case launch.Read:
		err = f.Learner.Read(ctx, o.Span.From, o.Span.N, nil)
	case launch.JoinForward:
		err = f.Learner.JoinForward(ctx)
	case launch.Restore:
		err = f.Learner.RestoreMoments(ctx, nil, nil)
	case launch.SetWeights:
		if err = f.Learner.RestoreWeights(ctx, nil); err == nil {
			r.Digest, err = f.Learner.Digest(ctx)
		}
	case launch.LoadReference:
		err = f.LoadReference(ctx, f.wanted.Config, f.wanted.Config.Agent(f.wanted.Agent), o.Folder)
	case launch.Sample:
		if f.engine, err = f.OpenEngine(ctx, f.wanted); err == nil {
			f.inbox.Sample(f.sample)
		}
	case launch.DigestWeights:
		r.Digest, err = f.Digest(ctx)
	case launch.UpdateWeights:
		err = f.engine.UpdateWeights(ctx, o.Version)
	case launch.Release:
		err = f.Learner.Close(ctx)
	}
	return r, err
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
		return launch.Turn{Reply: refusal(err), Stats: t.Stats}
	}
	return t
}

// open checks the kernels of the device and loads the weights.
func (f *follower) open(ctx context.Context, o launch.OpenOrder) error {
	cfg, err := config.Parse("/follower.yaml", o.Config, nil)
	if err != nil {
		return err
	}
	a := cfg.Agent(o.Agent)
	if a == nil {
		return fmt.Errorf("there is no agent %q in the configuration of a follower", o.Agent)
	}
	if err = selfTest(ctx, cfg, a, metrics.Observers{}); err != nil { // rank 0 reports the kernels of this machine
		return err
	}
	f.rank, f.size = o.Rank, o.Size
	f.Parts, f.wanted, err = assemble.OpenFollower(ctx, cfg, o)
	if err != nil || !o.NoTraining || o.Weights == "" {
		return err
	}
	return archive.ReadMaster(o.Weights, f.Params.Numel(), func(read func(from int64, dst []float32) error) error { return f.Params.Restore(ctx, read) })
}

// update makes the update of a minibatch of prepared sequences. A refusal is the same on all ranks; rank 0 reports it.
func (f *follower) update(ctx context.Context, o launch.Order) error {
	var minibatch []*learner.Sequence
	for _, i := range o.Which {
		if i < 0 || i >= len(f.prepared) {
			return fmt.Errorf("sequence %d does not exist: %d were prepared", i, len(f.prepared))
		}
		minibatch = append(minibatch, f.prepared[i])
	}
	f.set(o.AdamW)
	_, err := f.Learner.Update(ctx, minibatch, o.AdamW.LR)
	return err
}

func (f *follower) set(a *launch.AdamW) {
	f.Learner.SetAdam(a.Adam)
	f.Learner.SetSteps(a.Steps)
}
