package play

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// spoken is a task with its own dialect.
type spoken struct{ task.Task }

func (spoken) Name() string                                                          { return "spoken" }
func (spoken) Tokenizer() (*tokenizer.Tokenizer, error)                              { return nil, nil }
func (spoken) Dialect(task.AgentRole, *tokenizer.Tokenizer) (dialect.Dialect, error) { return nil, nil }

// TestFoldIsRefused: New refuses an agent whose conversations cannot be folded at the given limits.
func TestFoldIsRefused(t *testing.T) {
	p := searcher(t)
	for want, change := range map[string]func(*Options){
		"limits.fold.at is 40, but the prompt of an empty question has": func(s *Options) { s.Limits.Fold.At = 40 },
		"the task spoken has its own dialect":                           func(s *Options) { s.Task = spoken{} },
	} {
		s := p.Options
		s.Limits = agent.Limits{TurnTokens: 20, Fold: agent.Fold{At: 2000}}
		if _, err := New(s); err != nil {
			t.Fatal(err)
		}
		change(&s)
		if _, err := New(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
