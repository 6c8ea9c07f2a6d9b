package research

import (
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// step returns the meaning of a turn as a text: invalid, answer TEXT, delegate TASK, NAME ARGUMENTS, or note.
func step(t *testing.T, g *Grammar, turn string) string {
	t.Helper()
	switch a := g.Step(strings.Fields(turn)); {
	case a.Invalid != "":
		return "invalid"
	case a.Final:
		return "answer " + a.Answer
	case len(a.Calls) == 1 && a.Calls[0].Delegate:
		return "delegate " + a.Calls[0].Task
	case len(a.Calls) == 1:
		return a.Calls[0].Name + " " + string(a.Calls[0].Arguments)
	}
	return "note"
}

func newGrammar(role Role, fanOut bool) *Grammar {
	return &Grammar{role: role, limits: limitsOf(fanOut)}
}

func TestGrammarTurns(t *testing.T) {
	for _, c := range []struct {
		role Role
		turn string
		want string
	}{
		{Planner, "<call> Remy rival </call>", "delegate Remy rival"},
		{Planner, "<answer> Hana </answer>", "answer Hana"},
		{Planner, "<answer> unknown </answer>", "answer unknown"},
		{Planner, "<call> rival Remy </call>", "invalid"},
		{Planner, "<call> Remy </call>", "invalid"},
		{Planner, "<call> Remy alias </call>", "invalid"},
		{Planner, "<call> Remy rival </answer>", "invalid"},
		{Planner, "<call> Remy rival", "invalid"},
		{Planner, "<answer> rival </answer>", "invalid"},
		{Planner, "<answer> </answer>", "invalid"},
		{Planner, "<answer> Hana Remy </answer>", "invalid"},
		{Planner, "<search> Remy </search>", "invalid"},
		{Planner, "Hana <answer> Hana </answer>", "invalid"},
		{Planner, "</answer>", "invalid"},
		{Planner, "<answer>", "invalid"},
		{Planner, "", "invalid"},
		{Researcher, "<search> Remy rival </search>", `search {"query":"Remy rival"}`},
		{Researcher, "<search> rival </search>", `search {"query":"rival"}`},
		{Researcher, "<search> Remy rival Hana </search>", "invalid"},
		{Researcher, "<search> is </search>", "invalid"},
		{Researcher, "<search> </search>", "invalid"},
		{Researcher, "<result> unknown </result>", "invalid"}, // before any search
		{Researcher, "<answer> Hana </answer>", "invalid"},
		{Researcher, "<note> unknown </note>", "invalid"},
		{Single, "<note> Remy rival was Hana </note>", "note"},
		{Single, "<note> unknown </note>", "note"},
		{Single, "<note> Remy rival Hana </note>", "invalid"},
		{Single, "<search> Remy </search>", `search {"query":"Remy"}`},
		{Single, "<answer> Hana </answer>", "answer Hana"},
		{Single, "<call> Remy rival </call>", "invalid"},
	} {
		if got := step(t, newGrammar(c.role, false), c.turn); got != c.want {
			t.Errorf("%s says %q: %s, want %s", c.role, c.turn, got, c.want)
		}
	}
}

func TestGrammarLimits(t *testing.T) {
	for _, c := range []struct {
		role  Role
		turn  string
		limit int
	}{
		{Planner, "<call> Remy rival </call>", 5}, {Researcher, "<search> Remy </search>", 3},
		{Single, "<search> Remy </search>", 10}, {Single, "<note> unknown </note>", 10},
	} {
		g := newGrammar(c.role, false)
		for i := range c.limit + 1 {
			if got := step(t, g, c.turn); (got == "invalid") != (i == c.limit) {
				t.Errorf("%s: %s number %d: %s", c.role, c.turn, i+1, got)
			}
		}
	}
	g := newGrammar(Researcher, false)
	step(t, g, "<search> Remy </search>")
	if got := step(t, g, "<result> Remy alias is Hana </result>"); got != "answer Remy alias is Hana" {
		t.Errorf("a result after a search: %s", got)
	}
}

func TestGrammarObservations(t *testing.T) {
	planner := newGrammar(Planner, false)
	researcher := newGrammar(Researcher, false)
	for _, c := range []struct {
		g          *Grammar
		text, want string
	}{
		{planner, "Remy rival is Hana", "<resp> Hana </resp>"}, {planner, "unknown", "<resp> unknown </resp>"},
		{planner, "", "<resp> unknown </resp>"}, {planner, "Remy rival", "<resp> unknown </resp>"}, {planner, "<answer>", "<resp> unknown </resp>"},
		{researcher, "Remy rival is Hana .", "<docs> Remy rival is Hana . </docs>"}, {researcher, "", "<docs> </docs>"},
	} {
		if got := strings.Join(c.g.Observe(c.text), " "); got != c.want {
			t.Errorf("%q is observed as %q, want %q", c.text, got, c.want)
		}
	}
	if got := researcher.Prompt("Remy rival"); !slices.Equal(got, []string{"Remy", "rival", "?"}) {
		t.Errorf("prompt %q", got)
	}
	if planner.MaxNew() != 4 || researcher.MaxNew() != 7 || !slices.Equal(researcher.Stops(), []string{"</search>", "</result>"}) {
		t.Error("turn limits of the roles")
	}
}

// Every demonstration is a conversation that the grammar accepts from the first word to the last, with
// nothing but words of the vocabulary, and ends in an answer.
func TestDemonstrationsObeyTheGrammar(t *testing.T) {
	r, err := New(quickstart(3))
	if err != nil {
		t.Fatal(err)
	}
	words := wordSet(vocabulary)
	for _, role := range []Role{Planner, Researcher, Single} {
		for d := range r.Demonstrations(agentRole(role), 500) {
			g := newGrammar(role, false)
			var last dialect.Action
			for i, s := range d.Segments {
				turn := strings.Fields(s.Text)
				for _, w := range turn {
					if !words[w] {
						t.Fatalf("%s: %q is not a word of the vocabulary", d.Query, w)
					}
				}
				if !s.Sampled {
					continue
				}
				if len(turn) > g.MaxNew() || !slices.Contains(g.Stops(), turn[len(turn)-1]) {
					t.Fatalf("%s %s: turn %q does not stop", role, d.Query, s.Text)
				}
				last = g.Step(turn)
				if last.Invalid != "" {
					t.Fatalf("%s %s: %q: %s", role, d.Query, s.Text, last.Invalid)
				}
				if len(last.Calls) > 0 && !last.Calls[0].Delegate {
					q, err := r.Lookup(d.Query)
					if err != nil {
						t.Fatal(err)
					}
					found, err := searchOf(t, r, q, last.Calls[0])
					if want := strings.Join(g.Observe(found), " "); err != nil || d.Segments[i+1].Text != want {
						t.Fatalf("%s: %q is followed by %q, the tool says %q, %v", d.Query, s.Text, d.Segments[i+1].Text, want, err)
					}
				}
			}
			if !last.Final {
				t.Fatalf("%s %s does not end in an answer", role, d.Query)
			}
		}
	}
}

// searchOf returns the answer of a single agent's search tool to a call.
func searchOf(t *testing.T, r *Task, q task.Query, call dialect.Call) (string, error) {
	t.Helper()
	tools := r.Tools(q, agentRole(Single))
	if len(tools) != 1 || tools[0].Name() != call.Name {
		t.Fatalf("the tools are %v; the grammar calls %q", tools, call.Name)
	}
	return tools[0].Call(t.Context(), call.Arguments)
}

func FuzzStep(f *testing.F) {
	for _, s := range []string{"<call> Remy rival </call>", "<search> Remy </search>", "<note> unknown </note> </answer>", "< </", "</> </>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, turn string) {
		for _, role := range []Role{Planner, Researcher, Single} {
			g := newGrammar(role, false)
			g.Step(strings.Fields(turn))
			g.Step(strings.Split(turn, " "))
			g.Observe(turn)
		}
	})
}
