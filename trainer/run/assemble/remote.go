package assemble

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// remoteOpener returns the opener of a policy that samples on servers. The servers receive copies of p's weights.
func remoteOpener(cfg *config.Config, a *config.Agent) policyOpener {
	return policyOpener{
		varies: "samples on an engine of kind " + a.Engine.Kind + ", and equal bits are guaranteed by local engines only",
		open: func(ctx context.Context, p *AgentParts, agent AgentOptions) (policy.Policy, error) {
			opt, err := serverOptions(cfg, a)
			if err != nil {
				return nil, err
			}
			opt.Context, opt.Vocabulary, opt.TokenBytes, opt.Note = a.ContextTokens(p.Model.MaxPosition()), p.Model.Config.VocabSize,
				p.Tokenizer.TokenBytes, agent.Note
			engine, err := remote.New(ctx, weightAccess{p, map[string]weights.DType{"bf16": weights.BF16, "fp32": weights.F32}[a.Engine.Weights.DType]}, opt)
			if err != nil {
				return nil, err
			}
			return engine, nil
		},
	}
}

// DescribeServers requests a description from each server that samples for an agent, without waiting for absent ones. An agent with
// a local engine has none.
func DescribeServers(ctx context.Context, cfg *config.Config, a *config.Agent) ([]string, error) {
	if !a.Engine.Remote() {
		return nil, nil
	}
	opt, err := serverOptions(cfg, a)
	if err != nil {
		return nil, err
	}
	return remote.Inspect(ctx, opt)
}

// serverOptions returns the options that follow from the configuration alone.
func serverOptions(cfg *config.Config, a *config.Agent) (remote.Options, error) {
	opt := remote.Options{
		Kind: remote.Kind(a.Engine.Kind), URLs: a.Engine.URL, Folder: cfg.Resolve(a.Engine.Weights.Path), Name: cfg.Run.Name + "." + a.Name,
		InFlight: cfg.Slots(a), Temperature: cfg.GRPO.Temperature, Tolerance: a.Engine.Weights.Tolerance, Patience: cfg.Store.Timeout,
	}
	var err error
	opt.Key, err = secret.FromEnv("agents."+a.Name+".engine.key_env", a.Engine.KeyEnv)
	return opt, err
}

// weightAccess gives servers access to the agent's weights.
type weightAccess struct {
	parts *AgentParts
	dtype weights.DType
}

func (s weightAccess) Write(ctx context.Context, dir string) error {
	p := s.parts
	read := p.Params.Reader(ctx, func(from int64, dst []float32) error { return p.Params.Read(ctx, from, dst) })
	return p.Model.HF(read).WriteFolder(dir, s.dtype, p.Tokenizer.Files())
}

func (s weightAccess) Logits(ctx context.Context, ids []int32, ends []int) ([][]float32, error) {
	if params, learned := s.parts.Params.(launch.RankedParams); learned && s.parts.Model.Gathered() {
		return params.Learner.Logits(ctx, ids, ends)
	}
	return s.parts.Model.Logits(ctx, ids, ends)
}

// Frozen reports whether the weights are not trained, or no longer trained.
func (s weightAccess) Frozen() bool { return s.parts.Learner == nil }
