package config

import "math"

// validateFold refuses limits.fold if a conversation cannot be folded.
func validateFold(c *Config, d *decoder, a *Agent) {
	key, f := "agents."+a.Name+".limits.fold", a.Limits.Fold
	switch {
	case f.At == 0 && f.Keep > 0:
		d.failAt(key+".at", "missing; keep has an effect only if conversations are folded")
	case f.At == 0:
	case c.PlayedByProgram():
		d.failAt(key, "a program plays the rollouts and shortens its conversations itself (docs/programs.md); remove this key")
	case a.Model.Endpoint != nil:
		d.failAt(key, "the model of %s is hosted, so its conversations cannot be folded; remove this key", a.Name)
	case c.Task.Kind == "research":
		d.failAt(key, "the task research has its own dialect, which cannot express a summary; use jsonl or gsm8k")
	default:
		if err := a.Foldable(math.MaxInt); err != nil {
			d.failAt(key+".at", "%v", err)
		}
	}
}
