package assemble

import (
	"context"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
)

// policyOpener opens the policy of one agent. It determines, before any weights are loaded, whether results are reproducible.
type policyOpener struct {
	varies string // why equal requests may give other bits, a phrase that follows the agent's name in an error; "": the bits are equal
	open   func(ctx context.Context, p *AgentParts, opt AgentOptions) (policy.Policy, error)
}

// openerOf selects the opener by the agent's engine. No other function distinguishes kinds of policies.
func openerOf(cfg *config.Config, a *config.Agent) policyOpener {
	if a.Engine.Remote() {
		return remoteOpener(cfg, a)
	}
	return localOpener(cfg, a)
}

// localOpener returns the opener of our own engine. The engine reads the weights of p.Model in place and samples for all agents with
// its base.
func localOpener(cfg *config.Config, a *config.Agent) policyOpener {
	overlap := cfg.GRPO.Slack() > 0
	m := policyOpener{open: func(ctx context.Context, p *AgentParts, opt AgentOptions) (policy.Policy, error) {
		positions := p.Model.MaxPosition()
		sharing := opt.sharing(a)
		cache := cfg.CacheOf(sharing, positions)
		plain := func(a *config.Agent) bool { return !a.Engine.CUDAGraphs }
		engine, err := p.base.sampler(ctx, local.Options{
			Slots: cache.Slots, Conversations: cache.Conversations, CacheTokens: cache.Tokens, Context: cache.Context, HalfCache: a.HalfCache(),
			NoGraphs: slices.ContainsFunc(sharing, plain), Note: opt.Note})
		if err != nil {
			return nil, err
		}
		tenant, err := engine.Join(ctx, p.Model, local.TenantOptions{Context: a.ContextTokens(positions), TokenBytes: p.Tokenizer.TokenBytes, Overlap: overlap})
		if err != nil {
			return nil, err
		}
		return tenant, nil
	}}
	switch onGPU := a.Device != "cpu"; {
	case a.Model.Module != nil:
		m.varies = "has a TorchScript module, whose results may depend on the other sequences of a pass"
	case local.Deterministic(onGPU, overlap):
	case onGPU:
		m.varies = "is on " + a.Device + ", and equal bits are guaranteed on the CPU only"
	default:
		m.varies = "samples while its weights change (grpo.max_lag)"
	}
	return m
}

// Deterministic reports whether equal seeds and CPU features result in bit-equal runs. This is true if every agent's policy
// is deterministic, and run.deterministic is not false. It returns an error if run.deterministic is true, but a policy
// cannot guarantee it.
func Deterministic(cfg *config.Config) (bool, error) {
	demanded := cfg.Run.Deterministic
	for _, name := range cfg.AgentNames() {
		varies := "has a hosted model, whose server does not guarantee equal replies"
		if a := cfg.Agent(name); a.Model.Endpoint == nil {
			varies = openerOf(cfg, a).varies
		}
		if varies == "" {
			continue
		}
		if demanded != nil && *demanded {
			return false, fmt.Errorf("run.deterministic: agents.%s %s", name, varies)
		}
		return false, nil
	}
	return demanded == nil || *demanded, nil
}
