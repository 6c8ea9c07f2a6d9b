package worker

import (
	"context"
	"errors"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

const quickstart = "../../../examples/quickstart/team.yaml"

// load returns the quickstart's configuration with overrides.
func load(t *testing.T, dir string, sets ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(quickstart, append([]string{"run.dir=" + dir}, sets...))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// openTask returns the configured task.
func openTask(t *testing.T, cfg *config.Config) task.Task {
	t.Helper()
	out, err := assemble.OpenTask(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// onlyMember returns the member of a run with one agent, researcher. Its store is closed at the end of the test.
func onlyMember(t *testing.T, o store.Options) *store.Member {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Join(t.Context(), "researcher", store.JoinRequest{Agents: []string{"researcher"}, Offers: []store.Offer{{Version: store.FromStart}}}, func(string) {})
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	t.Cleanup(func() {
		m.Leave(context.WithoutCancel(t.Context()))
		s.Close()
	})
	return m
}
