package store

import (
	"slices"
	"sync"
)

// agents lists all agents of the run, the main agent first. It is empty before the first Join.
type agents struct {
	mu    sync.Mutex
	names []string
}

func (a *agents) set(names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names = slices.Clone(names)
}

func (a *agents) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.names
}

// main returns a list with only the main agent, which begins and ends phases.
func (a *agents) main() []string {
	all := a.all()
	return all[:min(1, len(all))]
}
