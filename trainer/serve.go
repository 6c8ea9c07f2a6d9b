package trainer

import (
	"context"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// CheckpointOptions are the options of Serve and Chat in addition to the configuration. The zero value uses the run's newest
// complete checkpoint.
type CheckpointOptions struct {
	Checkpoint string           // folder of a step; "": the run's newest complete one
	Task       task.Task        // replaces the configured task; may be nil
	Observer   metrics.Observer // receives notes; may be nil
}

// with returns the options of a use by all agents in this process, whose programs have access through g.
func (o CheckpointOptions) with(g *Gateway) EvaluateOptions {
	return EvaluateOptions{Checkpoint: o.Checkpoint, Task: o.Task, Observer: o.Observer, Gateway: g}
}

// Serve gives programs access through g, which Listen returns, to the agents of a checkpoint, all in this process, until ctx
// ends. Requests may set temperature and truncation; the defaults are the same as in evaluations. Serve calls
// ready when the agents can answer, with the folder of the checkpoint.
func Serve(ctx context.Context, cfg *config.Config, g *Gateway, opt CheckpointOptions, ready func(stepDir string, agents []ServedAgent)) error {
	own := *cfg
	own.Agents = slices.Clone(cfg.Agents)
	for i := range own.Agents {
		own.Agents[i].Devices = nil // further devices would send a turn's tokens only at its end
	}
	return withCheckpoint(ctx, &own, opt.with(g), useServe, func(ctx context.Context, t *team, from archive.Manifest, stepDir string) error {
		return t.forEachWorker(ctx, func(w *worker.Worker, ctx context.Context) error {
			if g := w.Parts.Gateway; g != nil { // requests to a hosted model are passed on
				g.Begin(gateway.OpenPhase, gateway.Rules{Sampling: worker.Sampling(cfg, store.EvalPhase(from.Step)), Free: true})
				defer g.End(gateway.OpenPhase)
			}
			if w.Main() {
				ready(stepDir, t.served())
			}
			<-ctx.Done()
			return nil
		})
	})
}

// ServedAgent describes an agent that answers requests.
type ServedAgent struct {
	Name          string // the model of a request
	ContextTokens int    // largest number of tokens of a conversation; 0: the server of a hosted model sets it
	ReplyTokens   int    // largest number of tokens of a reply (limits.max_new_tokens); 0: as many as the context has room for
}

// served describes the agents of this process.
func (t *team) served() (out []ServedAgent) {
	for _, w := range t.workers {
		s := ServedAgent{Name: w.Name()}
		if g := w.Parts.Gateway; g != nil {
			s.ContextTokens, s.ReplyTokens = g.MaxTokens(), g.Limits.TurnTokens
		}
		out = append(out, s)
	}
	return out
}
