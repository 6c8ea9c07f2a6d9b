package trainer

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
)

// Gateway gives programs and other workers access to the agents of a process. The caller that starts a run serves Server
// at /v1/ and /r/, and Leases at /rollouts/.
type Gateway struct {
	Server    *gateway.Server
	Leases    *gateway.Leases   // nil: programs elsewhere cannot request rollouts
	URL       string            // the address of this process for others, without a path
	Transport http.RoundTripper // for requests to other workers; nil: http.DefaultTransport

	Open  bool // no training: anyone with Token may send requests, or anyone if Token is ""
	Token string
}

// openGateway opens the gateway: it publishes this process's address to the other workers, and the main agent's worker
// starts the programs that play rollouts, or leases rollouts to them.
func (t *team) openGateway(ctx context.Context) error {
	g := t.opt.Gateway
	if !t.Config.HasGateway() {
		return nil
	}
	if g == nil {
		return errors.New("the configuration has a gateway, but this program does not serve one: set Gateway in the options")
	}
	round := gateway.Round{Run: t.Config.Run.Name, Open: g.Open, Token: g.Token,
		Agents: t.Config.AgentNames(), Transport: g.Transport, Hosted: map[string]gateway.Upstream{}}
	fresh := make([]byte, gateway.SecretSize)
	rand.Read(fresh)
	var agents []*gateway.AgentServer
	for _, w := range t.workers {
		if w.Parts.Gateway == nil && g.Open {
			to, err := upstreamOf(t.Config.Agent(w.Name()).Model.Endpoint)
			if err != nil {
				return fmt.Errorf("agents.%s.model: %w", w.Name(), err)
			}
			round.Hosted[w.Name()] = to
			continue
		}
		if w.Parts.Gateway == nil {
			return fmt.Errorf("agents.%s is a hosted model, which does not provide tokens to train on: let the program call its server directly, and "+
				"remove the agent from the team", w.Name())
		}
		secret, err := w.Member().Gateways.Publish(ctx, g.URL, base64.StdEncoding.EncodeToString(fresh))
		if err != nil {
			return err
		}
		if round.Secret, err = base64.StdEncoding.DecodeString(secret); err != nil || len(round.Secret) != gateway.SecretSize {
			return fmt.Errorf("the store's secret of the gateway is damaged: delete the run's key that ends with gateway")
		}
		round.Name = w.Member().Round.Nonce()
		agents = append(agents, w.Parts.Gateway)
	}
	if len(agents) < len(round.Agents) {
		round.Address = t.addressOf
	}
	for _, w := range t.workers {
		if err := g.openPrograms(t.Config, w, round.Secret); err != nil {
			return fmt.Errorf("agent %s: %w", w.Name(), err)
		}
	}
	g.Server.BeginRound(round, agents)
	return nil
}

// upstreamOf returns the server to which requests for an agent with a hosted model are sent.
func upstreamOf(e *config.Endpoint) (to gateway.Upstream, err error) {
	to.Model = e.Name
	if to.URL, err = url.Parse(e.URL); err != nil {
		return to, err
	}
	if e.KeyEnv != "" {
		if to.Key = os.Getenv(e.KeyEnv); to.Key == "" {
			return to, fmt.Errorf("key_env: the environment variable %s is not set", e.KeyEnv)
		}
	}
	return to, nil
}

// addressOf returns the address of another worker's gateway.
func (t *team) addressOf(ctx context.Context, agent string) (*url.URL, error) {
	address, err := t.members[0].Gateways.URL(ctx, agent)
	if err != nil {
		return nil, err
	}
	if address == "" {
		return nil, errors.New("its worker has not published its address")
	}
	return url.Parse(address)
}

// openPrograms lets programs play the rollouts if this is the main agent's worker and the configuration asks for it.
func (g *Gateway) openPrograms(cfg *config.Config, w *worker.Worker, secret gateway.Secret) error {
	p := cfg.Task.Program
	switch {
	case !w.Main() || !cfg.PlayedByProgram() || g.Open:
		return nil
	case p.Elsewhere && g.Leases == nil:
		return errors.New("task.program.elsewhere: this process does not lease rollouts")
	case p.Elsewhere:
		g.Leases.Sign(secret)
		w.SetPlayer(g.Leases)
		return nil
	}
	programs, err := gateway.NewPrograms(gateway.Programs{Command: p.Command, Dir: cfg.Resolve(p.Dir), Timeout: p.Timeout,
		Parallel: p.Parallel, BaseURL: g.URL + "/v1", Secret: secret,
		Hidden: cfg.SecretEnv()})
	if err != nil {
		return fmt.Errorf("task.program.command: %w", err)
	}
	w.SetPlayer(programs)
	return nil
}
