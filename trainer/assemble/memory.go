package assemble

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/memory"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// MemoryPlans says, before anything is allocated, what the named agents (nil: all that take part) will need.
// It reads the headers of checkpoints and no weights. The error names every model that cannot be opened.
func MemoryPlans(cfg *config.Config, names []string) ([]memory.Plan, error) {
	if names == nil {
		names = cfg.AgentNames()
	}
	var plans []memory.Plan
	var faults config.Errors
	for _, name := range names {
		a := cfg.Agent(name)
		if a == nil {
			return nil, fmt.Errorf("no agent %q in the configuration: it has %v", name, cfg.AgentNames())
		}
		arch, err := architecture(cfg, a)
		if err != nil {
			faults = append(faults, cfg.Fault("agents."+name+".model", err))
			continue
		}
		plans = append(plans, memory.Count(cfg, a, arch))
	}
	return plans, faults.Err()
}

// architecture is what the agent's model will be.
func architecture(cfg *config.Config, a *config.Agent) (arch.Config, error) {
	if s := a.Model.Shape; s != nil {
		tok, err := ShapeTokenizer(cfg, s, nil)
		if err != nil {
			return arch.Config{}, err
		}
		return ShapeConfig(s, tok)
	}
	path, err := cfg.Find(a.Model.Path)
	if err != nil {
		return arch.Config{}, err
	}
	src, err := weights.Open(path)
	if err != nil {
		return arch.Config{}, err
	}
	defer src.Close()
	return src.Config(), nil
}
