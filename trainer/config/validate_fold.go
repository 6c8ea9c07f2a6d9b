package config

import "math"

// validateFold refuses limits.fold where a conversation cannot be folded.
func (c *Config) validateFold(d *decoder, a *Agent) {
	key, f := "agents."+a.Name+".limits.fold", a.Limits.Fold
	switch {
	case f.At == 0 && f.Keep > 0:
		d.failAt(key+".at", "missing; keep says what is left when a conversation of at tokens is folded")
	case f.At == 0:
	case c.PlayedByProgram():
		d.failAt(key, "a program plays the rollouts and shortens its conversations itself (docs/programs.md); leave this out")
	case a.Model.Endpoint != nil:
		d.failAt(key, "the model of %s is hosted, and its conversations are not folded; leave this out", a.Name)
	case c.Task.Kind == "research":
		d.failAt(key, "the task research speaks a language of its own, which has no words for a summary; use jsonl or gsm8k")
	default:
		if err := a.Foldable(math.MaxInt); err != nil {
			d.failAt(key+".at", "%v", err)
		}
	}
}
