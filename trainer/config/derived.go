package config

// What follows from several keys.

// Slots is how many conversations an agent's engine holds at once: as many as a step has rollouts, unless configured.
func (c *Config) Slots(a *Agent) int {
	if n := a.Engine.Slots; n > 0 {
		return n
	}
	const most = 128
	return min(c.Task.QueriesPerStep*c.GRPO.Rollouts, most)
}

// ContextTokens is how many tokens a conversation may reach with a model of so many positions.
func (a *Agent) ContextTokens(positions int) int {
	for _, n := range []int{a.Engine.Context, a.Limits.MaxTokens} {
		if n > 0 {
			positions = min(positions, n)
		}
	}
	return positions
}

// ComputesBF16 says whether forward passes read bf16 weights beside an fp32 master.
func (a *Agent) ComputesBF16() bool {
	return a.DType == "bf16" || a.DType == "auto" && a.Device != "cpu"
}
