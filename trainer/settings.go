package trainer

import (
	"path/filepath"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// What the configuration's sections mean to the packages that do the work. Everything here was checked
// when the configuration was loaded.

func conventionOf(g config.GRPO) mgrpo.Convention {
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

func scheduleOf(o config.Optimizer, steps int64) learner.Schedule {
	total := o.DecaySteps
	if total == 0 {
		total = steps
	}
	return learner.Schedule{LR: o.LR, Warmup: o.Warmup, Kind: o.Schedule, Hold: o.Hold, Floor: o.Floor, Total: total}
}

func adamOf(o config.Optimizer) learner.Adam {
	return learner.Adam{Beta1: o.Betas[0], Beta2: o.Betas[1], Eps: o.Eps, WeightDecay: o.WeightDecay, Clip: o.Clip}
}

func limitsOf(l config.Limits) agent.Limits {
	return agent.Limits{Turns: l.MaxTurns, CallsPerTurn: l.MaxCallsPerTurn, TurnTokens: l.MaxNewTokens, Tokens: l.MaxTokens, Wall: l.WallTime}
}

// shapeConfig is the architecture of a model given by nothing but a shape.
func shapeConfig(s *config.Shape, tok *tokenizer.Tokenizer) (arch.Config, error) {
	c := arch.Config{
		Family: s.Family, VocabSize: s.Vocab, Hidden: s.Width, Layers: s.Layers, Heads: s.Heads, KVHeads: s.KVHeads,
		HeadDim: s.HeadDim, FFN: s.FFN, RMSEps: s.NormEps, RopeTheta: s.RopeTheta, MaxPosition: s.MaxPositions, Tied: s.Tied,
	}.WithDefaults()
	if c.VocabSize == 0 {
		c.VocabSize = tok.VocabSize()
	}
	if tok.EOS() != tokenizer.NoID {
		c.EOS = []int32{tok.EOS()}
	}
	return c, c.Validate()
}

func checkpointsDir(dir string) string { return filepath.Join(dir, checkpointsFolder) }

func agentDir(r archive.Run, step int64, name string) string {
	return filepath.Join(r.StepDir(step), name)
}

func cpuFeatures() string { return torch.CPUFeatures() }
