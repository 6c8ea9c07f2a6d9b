package assemble

import (
	"cmp"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Settings of other packages, made from sections of the configuration. All values were checked when the configuration was
// loaded.

// Rules holds the options of an agent's rewards, groups and updates.
type Rules struct {
	Rewards    mgrpo.RewardWeights
	Align      mgrpo.Align
	Convention mgrpo.Convention
	Schedule   learner.RateSchedule
}

// RulesOf returns the rules that the configuration sets for an agent.
func RulesOf(cfg *config.Config, a *config.Agent) Rules {
	g := cfg.GRPO
	return Rules{
		Rewards:    g.Reward,
		Align:      mgrpo.Align{Mode: mgrpo.AlignMode(g.Align.Mode), D: a.Align.D},
		Convention: convention(g),
		Schedule:   Schedule(a.Optimizer, cfg.Run.Steps),
	}
}

func convention(g config.GRPO) mgrpo.Convention {
	c := mgrpo.Convention{Baseline: mgrpo.BaselineMean, Eps: g.StdEps}
	switch g.Convention {
	case "population":
		c.Std, c.SigmaMin = mgrpo.StdPopulation, g.SigmaMin
	case "leave_one_out":
		c.Std, c.Baseline = mgrpo.StdNone, mgrpo.BaselineLeaveOneOut
	case "leave_one_out_std":
		c.Std, c.Baseline, c.Eps = mgrpo.StdSample, mgrpo.BaselineLeaveOneOutStd, 1e-6
	default:
		c.Std = mgrpo.Std(g.Convention)
	}
	return c
}

// Schedule returns an optimizer's learning rates over the given number of steps.
func Schedule(o config.Optimizer, steps int64) learner.RateSchedule {
	return learner.RateSchedule{LR: o.LR, Warmup: o.Warmup, Decay: learner.Decay(o.Schedule), Hold: o.Hold, Floor: o.Floor, Total: cmp.Or(o.DecaySteps, steps)}
}

// Adam returns the constants of AdamW.
func Adam(o config.Optimizer) learner.Adam {
	return learner.Adam{Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, WeightDecay: o.WeightDecay, Clip: o.Clip}
}

// StoreOptions returns the store's options, and reads the secrets that the configuration names.
func StoreOptions(cfg *config.Config) (store.Options, error) {
	c := cfg.Store
	o := store.Options{
		Run: cfg.Run.Name, URL: c.URL, Username: c.Username,
		TLS: store.TLSOptions{CAFile: cfg.Resolve(c.TLS.CA), CertFile: cfg.Resolve(c.TLS.Cert), KeyFile: cfg.Resolve(c.TLS.Key),
			ServerName: c.TLS.ServerName},
		AllowInsecure: c.AllowInsecure != "", AllowVolatile: c.AllowVolatile != "", Lease: c.Lease, Timeout: c.Timeout, MaxDeliveries: c.MaxDeliveries,
	}
	var err error
	o.Password, err = cfg.Password()
	return o, err
}

func limits(l config.Limits) agent.Limits {
	return agent.Limits{Turns: l.MaxTurns, CallsPerTurn: l.MaxCallsPerTurn, TurnTokens: l.MaxNewTokens, Tokens: l.MaxTokens, Fold: agent.Fold(l.Fold),
		Wall: l.WallTime}
}

// shapeConfig returns the architecture of a model that is given by a shape only.
func shapeConfig(s *config.Shape, tok *tokenizer.Tokenizer) (arch.Config, error) {
	c := arch.Config{
		Family: s.Family, VocabSize: s.Vocab, Hidden: s.Width, Layers: s.Layers, Heads: s.Heads, KVHeads: s.KVHeads,
		HeadDim: s.HeadDim, FFN: s.FFN, RMSEps: s.NormEps, Rope: arch.Rope{Theta: s.RopeTheta}, MaxPosition: s.MaxPositions, Tied: s.Tied,
	}
	if s.Experts > 0 {
		c.Mixture = &arch.Mixture{Experts: s.Experts, PerToken: s.PerToken, FFN: s.ExpertFFN, Normalise: true, Step: 1}
	}
	c = c.WithDefaults()
	c.VocabSize = cmp.Or(c.VocabSize, tok.VocabSize())
	if tok.EOS() != tokenizer.NoID {
		c.Tokens.EOS = []int32{tok.EOS()}
	}
	return c, c.Validate()
}

// KLWarning returns a text if the KL term of a configuration does not limit the policy, and otherwise "".
func KLWarning(cfg *config.Config) string {
	switch g := cfg.GRPO; {
	case g.KL == mgrpo.KLNone:
	case g.KLCoef == 0:
		return fmt.Sprintf("grpo.kl %s has the weight 0 (grpo.kl_coef), so the divergence is measured, at the cost of the reference weights, and does not "+
			"limit the policy: set grpo.kl_coef, such as 0.001, or remove grpo.kl", g.KL)
	case g.KL == mgrpo.KL1:
		return "the gradient of grpo.kl k1 as a loss is 0 in expectation: use k2 or k3"
	}
	return ""
}
