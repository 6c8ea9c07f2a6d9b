package worker

import (
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// spokenTokens returns a row with one trained token.
func spokenTokens(id string) agent.Row {
	return agent.Row{ID: id, Tokens: []int32{1, 2}, Sampled: []bool{false, true}, LogProbs: []float32{0, -1}}
}

// TestFoldIsOneTrajectory: folding a conversation of a group changes neither its group nor its
// advantage. Both stretches are trained as rows of one trajectory.
func TestFoldIsOneTrajectory(t *testing.T) {
	cfg := load(t, t.TempDir(), "grpo.align.d=3")
	sequences := func(name string, fold bool) map[string]*learner.Sequence {
		main := name == cfg.Main().Name
		s := stepsOf(cfg, name)
		exp := &experience{plan: store.Plan{Queries: []string{"q"}, Rollouts: 3}, trajectories: map[string]*trajectory{}}
		var outcomes []store.Outcome
		for k := range 3 {
			o := store.Outcome{Query: "q", Rollout: k, Format: true, Correct: float64(k) / 2, Reward: float64(k) / 2, Calls: map[string]int{"researcher": 2}}
			outcomes = append(outcomes, o)
			calls := 2
			if main {
				calls = 1
			}
			for i := range calls {
				score := float64(i)
				row := spokenTokens(idOf(s.agent, "q", k, i))
				t := &trajectory{conversation: agent.Trajectory{Row: row, FormatValid: true}, expert: &score}
				if fold && k == 1 && i == 0 {
					t.conversation.More = []agent.Row{spokenTokens(agent.RowID(t.conversation.ID, 1))}
				}
				exp.trajectories[t.conversation.ID] = t
			}
		}
		groups, err := s.groups(exp, map[string][]store.Outcome{"q": outcomes})
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.normaliser.normalise(t.Context(), groups)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]*learner.Sequence{}
		for _, q := range s.sequences(0, exp, groups, a.Groups)["q"] {
			out[q.ID] = q
		}
		return out
	}
	for _, name := range []string{"planner", "researcher"} {
		t.Run(name, func(t *testing.T) {
			plain, folded := sequences(name, false), sequences(name, true)
			id := idOf(stepsOf(cfg, name).agent, "q", 1, 0)
			row := folded[agent.RowID(id, 1)]
			if row == nil || len(folded) != len(plain)+1 {
				t.Fatalf("got %d sequences with the fold and %d without, want one more; row of the second stretch: %v", len(folded), len(plain), row)
			}
			for of, want := range plain {
				if got := folded[of]; got == nil || got.Advantage != want.Advantage || got.Weight != want.Weight || got.Group != want.Group || got.TrajectoryID != of {
					t.Errorf("%s: got %+v with a folded conversation in its group, want %+v as without", of, got, want)
				}
			}
			if want := plain[id]; row.Advantage != want.Advantage || row.Weight != want.Weight || row.Group != want.Group || row.TrajectoryID != id {
				t.Errorf("row of the second stretch: got %+v, want advantage, weight and group of %+v", row, want)
			}
		})
	}
}

// TestFoldedConversationIsWhole: a verifier gets all stretches of a folded conversation.
func TestFoldedConversationIsWhole(t *testing.T) {
	folded := agent.Trajectory{
		Row:  agent.Row{Turns: []agent.Turn{{Role: agent.RolePrompt, Text: "?"}, {Role: agent.RoleSampled, Text: "summary", Sampled: true}}},
		More: []agent.Row{{Turns: []agent.Turn{{Role: agent.RolePrompt, Text: "? summary"}, {Role: agent.RoleSampled, Text: "!", Sampled: true}}}},
	}
	want := []string{"?", "summary", "? summary", "!"}
	var verified []string
	for _, m := range attemptOf(folded, "").Conversation {
		verified = append(verified, m.Text)
	}
	if !slices.Equal(verified, want) {
		t.Errorf("a verifier gets %q, want %q", verified, want)
	}
}
