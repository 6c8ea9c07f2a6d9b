package standalone

import (
	"context"
	"net/http"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// ServeOptions are the options of Checkpoint.Serve.
type ServeOptions struct {
	Name  string                  // name of the model in requests
	Token string                  // requests must have it as their API key; "": none is needed
	Ready func(contextTokens int) // called when the model can answer, with the largest number of tokens of a conversation; may be nil
}

// Endpoint is an OpenAI endpoint. While no checkpoint is served at it, requests are answered with 429 and Retry-After, so that clients wait
// for a model that is loading.
type Endpoint struct{ server *gateway.Server }

// NewEndpoint adds the paths /v1/ and /r/ to mux, such as an http.ServeMux.
func NewEndpoint(mux interface{ Handle(string, http.Handler) }) *Endpoint {
	e := &Endpoint{gateway.NewServer()}
	e.server.Mount(mux)
	return e
}

// Serve answers requests for the model at an endpoint until ctx ends. engine is from OpenEngine. Requests may set temperature and
// truncation; the temperature is 1 by default. It returns nil when ctx ends, and an error if the checkpoint has no readable tokenizer.
func (c *Checkpoint) Serve(ctx context.Context, at *Endpoint, engine policy.Policy, opt ServeOptions) error {
	if c.Tokenizer == nil {
		return c.NoTokenizerError()
	}
	server := at.server
	a := gateway.NewAgentServer(gateway.AgentOptions{Name: opt.Name, Main: true, Policy: engine, Tokenizer: c.Tokenizer})
	a.Begin(gateway.OpenPhase, gateway.Rules{Sampling: policy.Sampling{Temperature: 1}, Free: true})
	defer a.End(gateway.OpenPhase)
	defer server.BeginRound(gateway.Round{}, nil)
	server.BeginRound(gateway.Round{Open: true, Token: opt.Token, Agents: []string{opt.Name}}, []*gateway.AgentServer{a})
	if opt.Ready != nil {
		opt.Ready(a.MaxTokens())
	}
	<-ctx.Done()
	return nil
}
