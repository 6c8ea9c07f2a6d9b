package assemble

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/memory"
)

// MemoryNeeds counts the memory that the named agents (nil: all that take part) will need, before anything is allocated.
// It reads the headers of checkpoints and no weights. The error names every model that cannot be opened.
func MemoryNeeds(cfg *config.Config, names []string) ([]memory.Need, error) {
	if names == nil {
		names = cfg.AgentNames()
	}
	var needs []memory.Need
	holders := map[string][]*config.Agent{}
	var faults config.Errors
	for _, name := range names {
		a := cfg.Agent(name)
		if a == nil {
			return nil, fmt.Errorf("no agent %q in the configuration: it has %s", name, strings.Join(cfg.AgentNames(), ", "))
		}
		if a.Model.Endpoint != nil {
			needs = append(needs, memory.Need{Agent: name})
			continue
		}
		arch, quantised, err := architecture(cfg, a)
		var fault *config.Error
		switch {
		case errors.As(err, &fault):
			faults = append(faults, fault)
			continue
		case err != nil:
			return nil, err
		}
		n, err := trained(cfg, a, arch)
		switch {
		case errors.As(err, &fault):
			faults = append(faults, fault)
			continue
		case err != nil:
			return nil, err
		}
		var before []*config.Agent
		if key := baseKey(cfg, a); key != "" {
			before = holders[key]
			holders[key] = append(before, a)
		}
		needs = append(needs, memory.Count(cfg, a, arch, n, quantised, before...))
	}
	return needs, faults.Err()
}
