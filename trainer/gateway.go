package trainer

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
)

// processGateway gives programs and other workers access to the agents of a process.
type processGateway struct {
	server    *gateway.Server
	leases    *gateway.Leases   // nil: programs elsewhere cannot request rollouts
	url       string            // the address of this process for others, without a path; "": for none
	transport http.RoundTripper // for requests to other workers; nil: http.DefaultTransport

	open  bool   // Serve sets it: requests need no ticket of a rollout
	token string // Serve sets it: requests must have this API key; "": no key is needed
}

// mount adds the gateway's paths to a server.
func (g *processGateway) mount(mux gateway.Mux) {
	g.server.Mount(mux)
	if g.leases != nil {
		mux.Handle("/rollouts/", g.leases)
	}
}

// openGateway opens the gateway: it publishes this process's address to the other workers, and the main agent's worker
// starts the programs that play rollouts, or leases rollouts to them.
func (g *workerGroup) openGateway(ctx context.Context) error {
	gw := g.hooks.gateway
	if gw == nil {
		return nil
	}
	round := gateway.Round{Run: g.options.Config.Run.Name, Open: gw.open, Token: gw.token,
		Agents: g.options.Config.AgentNames(), Transport: gw.transport, Hosted: map[string]gateway.Upstream{}}
	fresh := make([]byte, gateway.SecretSize)
	rand.Read(fresh)
	var agents []*gateway.AgentServer
	for _, w := range g.workers {
		if w.Parts().Gateway == nil && gw.open {
			to, err := upstreamOf(g.options.Config.Agent(w.Name()).Model.Endpoint)
			if err != nil {
				return fmt.Errorf("agents.%s.model: %w", w.Name(), err)
			}
			round.Hosted[w.Name()] = to
			continue
		}
		if w.Parts().Gateway == nil {
			return fmt.Errorf("agents.%s is a hosted model, which does not provide tokens to train on: let the program call its server directly, and "+
				"remove the agent from the team", w.Name())
		}
		shared, err := w.Member().Gateways.Publish(ctx, gw.url, base64.StdEncoding.EncodeToString(fresh))
		if err != nil {
			return err
		}
		if round.Secret, err = base64.StdEncoding.DecodeString(shared); err != nil || len(round.Secret) != gateway.SecretSize {
			return fmt.Errorf("the store's secret of the gateway is damaged: delete the run's key that ends with gateway")
		}
		round.Name = w.Member().Round.Nonce()
		agents = append(agents, w.Parts().Gateway)
	}
	if len(agents) < len(round.Agents) {
		round.Address = g.addressOf
	}
	for _, w := range g.workers {
		if err := gw.openPrograms(g.options.Config, w, round.Secret); err != nil {
			return fmt.Errorf("agent %s: %w", w.Name(), err)
		}
	}
	gw.server.BeginRound(round, agents)
	return nil
}

// upstreamOf returns the server to which requests for an agent with a hosted model are sent.
func upstreamOf(e *config.Endpoint) (to gateway.Upstream, err error) {
	to.Model = e.Name
	if to.URL, err = url.Parse(e.URL); err != nil {
		return to, err
	}
	to.Key, err = secret.FromEnv("key_env", e.KeyEnv)
	return to, err
}

// addressOf returns the address of another worker's gateway.
func (g *workerGroup) addressOf(ctx context.Context, agent string) (*url.URL, error) {
	address, err := g.members[0].Gateways.URL(ctx, agent)
	if err != nil {
		return nil, err
	}
	if address == "" {
		return nil, errors.New("its worker has not published its address")
	}
	return url.Parse(address)
}

// openPrograms lets programs play the rollouts if this is the main agent's worker and the configuration asks for it.
func (g *processGateway) openPrograms(cfg *config.Config, w *worker.Worker, secret gateway.Secret) error {
	p := cfg.Task.Program
	switch {
	case !w.Main() || !cfg.PlayedByProgram() || g.open:
		return nil
	case p.Elsewhere && g.leases == nil:
		return errors.New("task.program.elsewhere: this process does not lease rollouts")
	case p.Elsewhere:
		g.leases.Sign(secret)
		w.SetPlayer(g.leases)
		return nil
	}
	programs, err := gateway.NewPrograms(gateway.ProgramOptions{Command: p.Command, Dir: cfg.Resolve(p.Dir), Timeout: p.Timeout,
		Parallel: p.Parallel, BaseURL: g.url + "/v1", Secret: secret,
		HiddenEnv: cfg.SecretEnv()})
	if err != nil {
		return fmt.Errorf("task.program.command: %w", err)
	}
	w.SetPlayer(programs)
	return nil
}
