package compact

import (
	"context"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/policy"
	"github.com/mgrpo/mgrpo/trainer/task/research"
)

// words is the research task's vocabulary.
type words struct {
	list []string
	ids  map[string]int32
}

func vocabulary() words {
	v := words{research.Vocabulary(), map[string]int32{}}
	for i, w := range v.list {
		v.ids[w] = int32(i)
	}
	return v
}

func (v words) ID(word string) (int32, bool) { id, ok := v.ids[word]; return id, ok }

func (v words) Token(id int32) string {
	if id < 0 || int(id) >= len(v.list) {
		return ""
	}
	return v.list[id]
}

// model says prepared turns, one after the other.
type model struct {
	t     *testing.T
	vocab words
	turns []string
	seen  []policy.Request
}

func (m *model) ContextLimit() int { return 256 }
func (m *model) Version() int64    { return 0 }

func (m *model) Generate(_ context.Context, r policy.Request) (policy.Completion, error) {
	turn := strings.Fields(m.turns[len(m.seen)])
	m.seen = append(m.seen, r)
	out := policy.Completion{Finish: policy.FinishLength}
	for _, w := range turn {
		id, ok := m.vocab.ID(w)
		if !ok {
			id = 500 // padding of the embedding
		}
		if len(out.Tokens) == r.Sampling.MaxNew {
			break
		}
		out.Tokens, out.LogProbs = append(out.Tokens, id), append(out.LogProbs, -1)
		for _, stop := range r.Sampling.StopIDs {
			if id == stop {
				out.Finish = policy.FinishStop
				return out, nil
			}
		}
	}
	return out, nil
}

func hold(t *testing.T, role research.Role, question string, turns ...string) agent.Trajectory {
	t.Helper()
	v := vocabulary()
	d, err := New(role, v, "researcher")
	if err != nil {
		t.Fatal(err)
	}
	traj, err := agent.Run(t.Context(), agent.Spec{Key: policy.Key{Query: "q", Agent: string(role)}, Main: true, Task: question, Dialect: d}, agent.Env{
		Policy: &model{t: t, vocab: v, turns: turns},
		Tools: map[string]tool.Tool{research.SearchTool: tool.Func(research.SearchTool, "", QueryArgument, "",
			func(_ context.Context, q string) (string, error) { return q + " is Hana .", nil })},
		Delegate: func(_ context.Context, name string, _ int, task string) (string, error) {
			if name != string(research.Researcher) {
				t.Errorf("delegation to %q", name)
			}
			return task + " is Hana", nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := traj.Check(); err != nil {
		t.Fatal(err)
	}
	return traj
}

func text(traj agent.Trajectory) string {
	var parts []string
	for _, turn := range traj.Turns {
		parts = append(parts, turn.Text)
	}
	return strings.Join(parts, " ")
}

func TestPlanner(t *testing.T) {
	traj := hold(t, research.Planner, "Remy rival ?", "<call> Remy rival </call>", "<answer> Hana </answer>")
	if want := "Remy rival ? <call> Remy rival </call> <resp> Hana </resp> <answer> Hana </answer>"; text(traj) != want {
		t.Errorf("got %s\nwant %s", text(traj), want)
	}
	if !traj.FormatValid || traj.Answer != "Hana" || traj.Calls["researcher"] != 1 {
		t.Errorf("%+v", traj)
	}
	if traj.SampledTokens() != 7 || len(traj.Tokens) != 13 {
		t.Errorf("%d of %d tokens are sampled", traj.SampledTokens(), len(traj.Tokens))
	}
}

func TestResearcher(t *testing.T) {
	traj := hold(t, research.Researcher, "Remy rival", "<search> Remy rival </search>", "<result> Remy rival is Hana </result>")
	if want := "Remy rival ? <search> Remy rival </search> <docs> Remy rival is Hana . </docs> <result> Remy rival is Hana </result>"; text(traj) != want {
		t.Errorf("got %s\nwant %s", text(traj), want)
	}
	if !traj.FormatValid || traj.Answer != "Remy rival is Hana" || len(traj.Calls) != 0 {
		t.Errorf("%+v", traj)
	}
}

// A note is a turn without an observation: two sampled turns follow each other.
func TestSingleAgent(t *testing.T) {
	traj := hold(t, research.Single, "Remy rival ?", "<search> Remy </search>", "<note> Remy rival is Hana </note>", "<answer> Hana </answer>")
	if !traj.FormatValid || traj.Answer != "Hana" || len(traj.Turns) != 5 || !traj.Turns[3].Sampled || !traj.Turns[4].Sampled {
		t.Errorf("%+v", traj)
	}
}

func TestOutsideTheGrammar(t *testing.T) {
	call := "<call> Remy rival </call>"
	for name, tc := range map[string]struct {
		role   research.Role
		turns  []string
		finish string
	}{
		"wrong tag":        {research.Planner, []string{"<answer> Hana </call>"}, agent.FinishFormat},
		"no name":          {research.Planner, []string{"<answer> rival </answer>"}, agent.FinishFormat},
		"outside":          {research.Planner, []string{"<call> Nobody rival </call>"}, agent.FinishFormat},
		"too long":         {research.Planner, []string{"<call> Remy rival rival rival </call>"}, agent.FinishLength},
		"sixth call":       {research.Planner, []string{call, call, call, call, call, call}, agent.FinishFormat},
		"result unfounded": {research.Researcher, []string{"<result> unknown </result>"}, agent.FinishFormat},
	} {
		traj := hold(t, tc.role, "Remy rival ?", tc.turns...)
		if traj.FormatValid || traj.Finish != tc.finish || traj.Answer != "" {
			t.Errorf("%s: finish %s, valid %v", name, traj.Finish, traj.FormatValid)
		}
		if tc.role == research.Planner && traj.Calls["researcher"] != len(tc.turns)-1 {
			t.Errorf("%s: %d delegations, want %d", name, traj.Calls["researcher"], len(tc.turns)-1)
		}
	}
}

func TestForeignVocabulary(t *testing.T) {
	if _, err := New(research.Planner, words{}, "researcher"); err == nil {
		t.Error("a vocabulary without the stop words was accepted")
	}
	if _, err := New("juggler", vocabulary(), "researcher"); err == nil {
		t.Error("an unknown role was accepted")
	}
	d, err := New(research.Planner, vocabulary(), "finder")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Prompt("Who is Spartacus ?"); err == nil || !strings.Contains(err.Error(), `"Who"`) {
		t.Errorf("a question in other words: %v", err)
	}
}
