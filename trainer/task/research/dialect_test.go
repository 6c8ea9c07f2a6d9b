package research

import (
	"context"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// agentRole returns the AgentRole of an agent with a role of the grammar.
func agentRole(r Role) task.AgentRole {
	p := task.AgentRole{Agent: string(r), Main: r != Researcher}
	if r == Planner {
		p.Delegates = []string{string(Researcher)}
	}
	return p
}

func open(t *testing.T) (*Task, *tokenizer.Tokenizer) {
	t.Helper()
	r, err := New(quickstart(1))
	if err != nil {
		t.Fatal(err)
	}
	words, err := r.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	return r, words
}

// model gives prepared turns, one after the other.
type model struct {
	t     *testing.T
	vocab *tokenizer.Tokenizer
	turns []string
	seen  []policy.Request
}

func (m *model) ContextLimit() int { return 256 }

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

func converse(t *testing.T, role Role, question string, turns ...string) agent.Trajectory {
	t.Helper()
	r, v := open(t)
	d, err := r.Dialect(agentRole(role), v)
	if err != nil {
		t.Fatal(err)
	}
	traj, err := agent.Run(t.Context(), agent.Spec{Key: policy.Key{Query: "q", Agent: string(role)}, Main: true, Task: question, Dialect: d}, agent.Env{
		Policy: &model{t: t, vocab: v, turns: turns},
		Tools: map[string]tool.Tool{SearchTool: tool.Func(SearchTool, "", queryArgument, "",
			func(_ context.Context, q string) (string, error) { return q + " is Hana .", nil })},
		Delegate: func(_ context.Context, d agent.Delegation) (string, error) {
			if d.Agent != string(Researcher) {
				t.Errorf("delegation to %q", d.Agent)
			}
			return d.Task + " is Hana", nil
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
	traj := converse(t, Planner, "Remy rival ?", "<call> Remy rival </call>", "<answer> Hana </answer>")
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
	traj := converse(t, Researcher, "Remy rival", "<search> Remy rival </search>", "<result> Remy rival is Hana </result>")
	if want := "Remy rival ? <search> Remy rival </search> <docs> Remy rival is Hana . </docs> <result> Remy rival is Hana </result>"; text(traj) != want {
		t.Errorf("got %s\nwant %s", text(traj), want)
	}
	if !traj.FormatValid || traj.Answer != "Remy rival is Hana" || len(traj.Calls) != 0 {
		t.Errorf("%+v", traj)
	}
}

// A note is a turn without an observation: two sampled turns follow each other.
func TestSingleAgent(t *testing.T) {
	traj := converse(t, Single, "Remy rival ?", "<search> Remy </search>", "<note> Remy rival is Hana </note>", "<answer> Hana </answer>")
	if !traj.FormatValid || traj.Answer != "Hana" || len(traj.Turns) != 5 || !traj.Turns[3].Sampled || !traj.Turns[4].Sampled {
		t.Errorf("%+v", traj)
	}
}

func TestOutsideTheGrammar(t *testing.T) {
	call := "<call> Remy rival </call>"
	for name, tc := range map[string]struct {
		role   Role
		turns  []string
		finish string
	}{
		"wrong tag":        {Planner, []string{"<answer> Hana </call>"}, agent.FinishFormat},
		"no name":          {Planner, []string{"<answer> rival </answer>"}, agent.FinishFormat},
		"outside":          {Planner, []string{"<call> Nobody rival </call>"}, agent.FinishFormat},
		"too long":         {Planner, []string{"<call> Remy rival rival rival </call>"}, agent.FinishLength},
		"sixth call":       {Planner, []string{call, call, call, call, call, call}, agent.FinishFormat},
		"result unfounded": {Researcher, []string{"<result> unknown </result>"}, agent.FinishFormat},
	} {
		traj := converse(t, tc.role, "Remy rival ?", tc.turns...)
		if traj.FormatValid || traj.Finish != tc.finish || traj.Answer != "" {
			t.Errorf("%s: finish %s, valid %v", name, traj.Finish, traj.FormatValid)
		}
		if tc.role == Planner && traj.Calls["researcher"] != len(tc.turns)-1 {
			t.Errorf("%s: %d delegations, want %d", name, traj.Calls["researcher"], len(tc.turns)-1)
		}
	}
}

func TestForeignVocabulary(t *testing.T) {
	r, words := open(t)
	files, err := tokenizer.WordLevel{Vocab: []string{"<pad>", "Remy"}, Unk: "<pad>", Pad: "<pad>"}.Files()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := tokenizer.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Dialect(agentRole(Planner), foreign); err == nil {
		t.Error("a vocabulary without the stop words was accepted")
	}
	d, err := r.Dialect(agentRole(Planner), words)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Prompt("Who is Spartacus ?"); err == nil || !strings.Contains(err.Error(), `"Who"`) {
		t.Errorf("a question in other words: %v", err)
	}
}

// A team that the grammar has no words for is refused.
func TestPartsAreChecked(t *testing.T) {
	r, words := open(t)
	for want, p := range map[string]task.AgentRole{
		"agents.a.delegates: the planner of the research task has exactly one sub-agent; found 2": {Agent: "a", Main: true, Delegates: []string{"b", "c"}},
		"agents.a: the research task has no system prompt":                                        {Agent: "a", System: "Be brief."},
		"agents.b.tools: the research task brings its own search":                                 {Agent: "b", Tools: []string{"calculator"}},
	} {
		if _, err := r.Dialect(p, words); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", p, err, want)
		}
	}
}

// Who looks things up has the search, and a planner has nothing but its sub-agent.
func TestTools(t *testing.T) {
	r, _ := open(t)
	for role, want := range map[Role]int{Planner: 0, Researcher: 1, Single: 1} {
		if got := r.Tools(r.Train(0), agentRole(role)); len(got) != want {
			t.Errorf("%s has %d tools, want %d", role, len(got), want)
		}
	}
	search := r.Tools(task.Query{ID: "x"}, agentRole(Researcher))[0]
	if _, err := search.Call(t.Context(), []byte(`{"query": "Ada"}`)); err == nil {
		t.Error("a query without its knowledge base is searched")
	}
}
