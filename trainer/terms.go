package trainer

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// checkTerms refuses loss terms for agents that cannot have one. Agents of other processes are checked, too.
func checkTerms(cfg *config.Config, terms map[string]term.Term) error {
	for _, name := range slices.Sorted(maps.Keys(terms)) {
		if !slices.Contains(cfg.AgentNames(), name) {
			return fmt.Errorf("trainer: Options.Terms: the team has no agent %s", name)
		}
		a := cfg.Agent(name)
		switch {
		case term.IsNil(terms[name]):
			return fmt.Errorf("trainer: Options.Terms: the loss term of agent %s is nil", name)
		case a.Model.Endpoint != nil || !cfg.Learns(a):
			return cfg.Fault("agents."+name, errors.New("the agent is not trained, so it cannot have a loss term (trainer.Options.Terms)"))
		case len(a.Ranks()) > 1:
			return cfg.Fault("agents."+name+".devices", errors.New("an agent with several devices cannot have a loss term (trainer.Options.Terms): "+
				"the term's own parameters exist in one process only"))
		}
	}
	return nil
}
