package research

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
)

func step(t *testing.T, g *Grammar, turn string) Action {
	t.Helper()
	a := g.Step(strings.Fields(turn))
	if _, ok := a.(Invalid); ok {
		return Invalid{}
	}
	return a
}

func TestGrammarTurns(t *testing.T) {
	for _, c := range []struct {
		role Role
		turn string
		want Action
	}{
		{Planner, "<call> Remy rival </call>", Delegation{"Remy rival"}},
		{Planner, "<answer> Hana </answer>", Answer{"Hana"}},
		{Planner, "<answer> unknown </answer>", Answer{"unknown"}},
		{Planner, "<call> rival Remy </call>", Invalid{}},
		{Planner, "<call> Remy </call>", Invalid{}},
		{Planner, "<call> Remy alias </call>", Invalid{}},
		{Planner, "<call> Remy rival </answer>", Invalid{}},
		{Planner, "<call> Remy rival", Invalid{}},
		{Planner, "<answer> rival </answer>", Invalid{}},
		{Planner, "<answer> </answer>", Invalid{}},
		{Planner, "<answer> Hana Remy </answer>", Invalid{}},
		{Planner, "<search> Remy </search>", Invalid{}},
		{Planner, "Hana <answer> Hana </answer>", Invalid{}},
		{Planner, "</answer>", Invalid{}},
		{Planner, "<answer>", Invalid{}},
		{Planner, "", Invalid{}},
		{Researcher, "<search> Remy rival </search>", ToolCall{"search", "Remy rival"}},
		{Researcher, "<search> rival </search>", ToolCall{"search", "rival"}},
		{Researcher, "<search> Remy rival Hana </search>", Invalid{}},
		{Researcher, "<search> is </search>", Invalid{}},
		{Researcher, "<search> </search>", Invalid{}},
		{Researcher, "<result> unknown </result>", Invalid{}}, // before any search
		{Researcher, "<answer> Hana </answer>", Invalid{}},
		{Researcher, "<note> unknown </note>", Invalid{}},
		{Single, "<note> Remy rival was Hana </note>", Continue{}},
		{Single, "<note> unknown </note>", Continue{}},
		{Single, "<note> Remy rival Hana </note>", Invalid{}},
		{Single, "<search> Remy </search>", ToolCall{"search", "Remy"}},
		{Single, "<answer> Hana </answer>", Answer{"Hana"}},
		{Single, "<call> Remy rival </call>", Invalid{}},
	} {
		g, err := newGrammar(c.role, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := step(t, g, c.turn); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s says %q: %#v, want %#v", c.role, c.turn, got, c.want)
		}
	}
	if _, err := newGrammar("critic", false); err == nil {
		t.Error("an unknown role is accepted")
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
		g, _ := newGrammar(c.role, false)
		for i := range c.limit + 1 {
			if got := step(t, g, c.turn); (got == Invalid{}) != (i == c.limit) {
				t.Errorf("%s: %s number %d: %#v", c.role, c.turn, i+1, got)
			}
		}
	}
	g, _ := newGrammar(Researcher, false)
	step(t, g, "<search> Remy </search>")
	if got := step(t, g, "<result> Remy alias is Hana </result>"); got != (Answer{"Remy alias is Hana"}) {
		t.Errorf("a result after a search: %#v", got)
	}
}

func TestGrammarObservations(t *testing.T) {
	planner, _ := newGrammar(Planner, false)
	researcher, _ := newGrammar(Researcher, false)
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
	words := set(vocabulary)
	for _, role := range []Role{Planner, Researcher, Single} {
		for d := range r.Demonstrations(part(role), 500) {
			g, _ := newGrammar(role, false)
			var last Action
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
				if invalid, bad := last.(Invalid); bad {
					t.Fatalf("%s %s: %q: %s", role, d.Query, s.Text, invalid.Reason)
				}
				if call, ok := last.(ToolCall); ok {
					q, err := r.Lookup(d.Query)
					if err != nil {
						t.Fatal(err)
					}
					found, err := searchOf(t, r, q, call)
					if want := strings.Join(g.Observe(found), " "); err != nil || d.Segments[i+1].Text != want {
						t.Fatalf("%s: %q is followed by %q, the tool says %q, %v", d.Query, s.Text, d.Segments[i+1].Text, want, err)
					}
				}
			}
			if _, ok := last.(Answer); !ok {
				t.Fatalf("%s %s does not end in an answer", role, d.Query)
			}
		}
	}
}

// searchOf returns the answer of a single agent's search tool to a call.
func searchOf(t *testing.T, r *Task, q task.Query, call ToolCall) (string, error) {
	t.Helper()
	tools := r.Tools(q, part(Single))
	if len(tools) != 1 || tools[0].Name() != call.Name {
		t.Fatalf("the tools are %v; the grammar calls %q", tools, call.Name)
	}
	arguments, err := json.Marshal(map[string]string{queryArgument: call.Args})
	if err != nil {
		t.Fatal(err)
	}
	return tools[0].Call(t.Context(), arguments)
}

func FuzzStep(f *testing.F) {
	for _, s := range []string{"<call> Remy rival </call>", "<search> Remy </search>", "<note> unknown </note> </answer>", "< </", "</> </>"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, turn string) {
		for _, role := range []Role{Planner, Researcher, Single} {
			g, _ := newGrammar(role, false)
			g.Step(strings.Fields(turn))
			g.Step(strings.Split(turn, " "))
			g.Observe(turn)
		}
	})
}
