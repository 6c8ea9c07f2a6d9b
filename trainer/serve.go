package trainer

import (
	"context"
	"net/http"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// ServeOptions are the options of Serve in addition to the configuration.
type ServeOptions struct {
	CheckpointOptions
	Token string                                     // requests must have it as their API key; "": none is needed
	Ready func(stepDir string, agents []ServedAgent) // called when the agents can answer, with the folder of the checkpoint; may be nil
}

// Serve answers requests for the agents of a checkpoint, all in this process, until ctx ends, as an OpenAI endpoint. It adds the
// paths /v1/ and /r/ to mux, such as an http.ServeMux. Requests may set temperature and truncation; the defaults are the same as in
// evaluations. It returns nil when ctx ends. The configuration needs no gateway.
func Serve(ctx context.Context, cfg *config.Config, mux interface{ Handle(string, http.Handler) }, opt ServeOptions) error {
	gw := &processGateway{server: gateway.NewServer(), open: true, token: opt.Token}
	gw.mount(mux)
	own := *cfg
	own.Agents = slices.Clone(cfg.Agents)
	for i := range own.Agents {
		own.Agents[i].Devices = nil // further devices would send a turn's tokens only at its end
	}
	all := EvaluateOptions{CheckpointOptions: opt.CheckpointOptions}
	return withCheckpoint(ctx, &own, all, useServe, hooks{gateway: gw}, func(ctx context.Context, g *checkpointGroup) error {
		return g.forEachWorker(ctx, func(w *worker.Worker, ctx context.Context) error {
			if server := w.Parts().Gateway; server != nil { // requests to a hosted model are passed on
				server.Begin(gateway.OpenPhase, gateway.Rules{Sampling: worker.Sampling(cfg, store.EvalPhase(g.step)), Free: true})
				defer server.End(gateway.OpenPhase)
			}
			if w.Main() && opt.Ready != nil {
				opt.Ready(g.stepDir, g.served())
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
func (g *workerGroup) served() (out []ServedAgent) {
	for _, w := range g.workers {
		s := ServedAgent{Name: w.Name()}
		if server := w.Parts().Gateway; server != nil {
			s.ContextTokens, s.ReplyTokens = server.MaxTokens(), server.Limits.TurnTokens
		}
		out = append(out, s)
	}
	return out
}
