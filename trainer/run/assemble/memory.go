package assemble

import (
	"errors"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// MemoryNeeds counts the memory that each process of the named agents (nil: all agents that take part) will need on this
// machine, before anything is allocated. It reads only the headers of checkpoints. t may have the vocabulary of a model; if t is
// nil, the configured task is used. The error names every model that cannot be opened.
func MemoryNeeds(cfg *config.Config, names []string, t task.Task) ([]memory.Need, error) {
	if names == nil {
		names = cfg.AgentNames()
	}
	if err := config.CheckAgents(cfg, names); err != nil {
		return nil, err
	}
	var needs []memory.Need
	holders := map[string][]*config.Agent{}
	var faults config.Errors
	for _, name := range names {
		a := cfg.Agent(name)
		if a.Model.Endpoint != nil {
			needs = append(needs, memory.Need{Agent: name})
			continue
		}
		m, err := ModelOf(cfg, a, t)
		var fault *config.Error
		switch {
		case errors.As(err, &fault):
			if !slices.ContainsFunc(faults, func(f *config.Error) bool { return f.Error() == fault.Error() }) { // a mistake in the task
				faults = append(faults, fault)
			}
			continue
		case err != nil:
			return nil, err
		}
		var before []*config.Agent
		if key := baseKey(cfg, a); key != "" {
			before = holders[key]
			holders[key] = append(before, a)
		}
		needs = append(needs, memory.Count(cfg, a, m, before...))
		for rank := 1; rank < len(a.OnMachine()); rank++ {
			needs = append(needs, memory.CountFollower(cfg, a, rank, m))
		}
	}
	return needs, faults.Err()
}

// MachineNeeds counts the memory that the processes of an agent will need on one of its further machines, before
// anything is allocated.
func MachineNeeds(cfg *config.Config, name string, machine int) (needs []memory.Need, err error) {
	a, err := cfg.OfMachine(machine, name)
	if err != nil {
		return nil, err
	}
	m, err := ModelOf(cfg, a, nil)
	if err != nil {
		return nil, err
	}
	for i := range a.OnMachine() {
		needs = append(needs, memory.CountFollower(cfg, a, machine*len(a.OnMachine())+i, m))
	}
	return needs, nil
}

// ModelOf describes an agent's model, whose vocabulary t may have; if t is nil, the configured task is used. It reads only the
// headers of checkpoints. The model must not be hosted.
func ModelOf(cfg *config.Config, a *config.Agent, t task.Task) (m memory.Model, err error) {
	if m.Arch, m.Quantised, err = architecture(cfg, a, t); err == nil {
		m.Trained, err = trainedParameters(cfg, a, m.Arch)
	}
	return m, err
}
