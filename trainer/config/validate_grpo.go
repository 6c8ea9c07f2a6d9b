package config

import "github.com/mgrpo/mgrpo/trainer/mgrpo"

func validateGRPO(c *Config, d *decoder) {
	g := &c.GRPO
	if g.Credit == mgrpo.RemovalCredit {
		validateRemoval(c, d)
	}
	d.refuseIf(g.Aggregation == mgrpo.ConstantLength && g.MaxLength == 0, "grpo.max_length", "missing; aggregation constant divides by it")
	d.refuseIf(g.TISCap != nil && g.Old != "recomputed", "grpo.tis_cap", "needs grpo.old: recomputed; with the sampler's own log-probs every weight is 1")
	d.refuseIf(g.Minibatches > c.Task.QueriesPerStep, "grpo.minibatches",
		"must be at most task.queries_per_step, %d: a minibatch takes whole queries", c.Task.QueriesPerStep)
	if aligned := g.Align.Mode != "none" && len(c.Subs()) > 0; g.Convention == "leave_one_out_std" && aligned {
		d.failAt("grpo.convention", "leave_one_out_std needs trajectories of weight 1, but grpo.align.mode %s gives other weights; set it to none",
			g.Align.Mode)
	}
	d.refuseIf(g.MaxLag > 0 && g.TISCap == nil, "grpo.max_lag",
		"rollouts of older versions need importance weights: set grpo.old: recomputed and grpo.tis_cap")
	if det := c.Run.Deterministic; g.Slack() > 0 && det != nil && *det {
		d.failAt("grpo.max_lag", "the versions that sample then depend on the clock: run.deterministic cannot be true")
	}
	d.refuseIf(g.ExactLag && g.MaxLag == 0, "grpo.exact_lag", "needs grpo.max_lag above 0")
	d.refuseIf(g.RoutingStop < g.RoutingWarn, "grpo.routing_stop", "must be at least grpo.routing_warn, %s", formatFloat(g.RoutingWarn))
	d.refuseIf(g.GapStop < g.GapWarn, "grpo.gap_stop", "must be at least grpo.gap_warn, %s", formatFloat(g.GapWarn))
}

// validateRemoval refuses grpo.credit: removal if the end of the main agent's conversation cannot be sampled again.
func validateRemoval(c *Config, d *decoder) {
	const key = "grpo.credit"
	switch main := c.Main(); {
	case c.PlayedByProgram():
		d.failAt(key, "a program plays the rollouts, so the main agent cannot answer again without a call; use outcome")
	case main == nil:
	case main.Model.Endpoint != nil:
		d.failAt(key, "the model of %s is hosted, so it cannot answer again without a call; use outcome", main.Name)
	case main.Limits.Fold.At > 0:
		d.failAt(key, "the conversations of %s are folded, so it cannot answer again without a call; use outcome, or remove limits.fold", main.Name)
	}
}

func (o *Optimizer) validate(d *decoder, key string) {
	d.refuseIf(o.Schedule != ConstantSchedule && float64(o.Warmup) > float64(o.DecaySteps), key+".warmup", "must be at most decay_steps, %d", o.DecaySteps)
}
