package gsm8k

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/tasktest"
)

const data = "../../../testdata/gsm8k/"

func settings() Options {
	return Options{Train: data + "train.jsonl", Eval: data + "test.jsonl", Seed: 2, Delegate: 0.5}
}

func open(t *testing.T) *Task {
	t.Helper()
	g, err := Open(settings())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Every published solution is right by our verifier, and a wrong number is not.
func TestPublishedSolutions(t *testing.T) {
	g, ctx := open(t), t.Context()
	if len(g.questions) != 7473 || g.EvalSize() != 1319 {
		t.Fatalf("%d and %d problems", len(g.questions), g.EvalSize())
	}
	for _, p := range g.questions {
		q, err := g.Lookup(p.id)
		if err != nil {
			t.Fatal(err)
		}
		for answer, want := range map[string]float64{p.full(): 1, p.value: 1, "The answer is $" + p.value + ".00.": 1, `\boxed{` + p.value + "}": 1, p.value + "1": 0, p.solution + "\n####": 0} {
			if got, err := g.VerifyMain(ctx, q, task.Attempt{Answer: answer}); err != nil || got != want {
				t.Errorf("%s: %q scores %v, %v; want %v", p.id, answer, got, err, want)
			}
		}
		if strings.Contains(p.full(), "<<") || strings.Count(p.full(), "####") != 1 {
			t.Errorf("%s: marks are left in %q", p.id, p.full())
		}
	}
	q := g.Eval(0)
	if got, err := g.VerifySub(ctx, q, task.Attempt{Subtask: "any", Answer: "so it is " + q.Answer}); err != nil || got != 1 {
		t.Errorf("a sub-agent's right value scores %v, %v", got, err)
	}
}

func TestDemonstrations(t *testing.T) {
	g, planner := open(t), task.AgentRole{Agent: "planner", Main: true, Delegates: []string{"solver"}}
	tasktest.Check(t, g, planner, task.AgentRole{Agent: "solver"})
	const n = 400
	delegated, count, seen := 0, 0, map[string]bool{}
	for d := range g.Demonstrations(planner, n) {
		count++
		seen[d.Query] = true
		q, err := g.Lookup(d.Query)
		if err != nil || d.Segments[0].Text != q.Text || d.Segments[0].Sampled {
			t.Fatalf("%+v, %v", d, err)
		}
		last := d.Segments[len(d.Segments)-1]
		if got, _ := g.VerifyMain(t.Context(), q, task.Attempt{Answer: last.Text}); got != 1 || !last.Sampled {
			t.Fatalf("%s ends in %+v", d.Query, last)
		}
		if call := d.Segments[1].Call; call != nil {
			delegated++
			if *call != (task.Delegation{Agent: "solver", Subtask: q.Text}) || d.Segments[2].Sampled {
				t.Fatalf("%+v", d)
			}
		}
	}
	if count != n || len(seen) != n || delegated < n/2-40 || delegated > n/2+40 {
		t.Errorf("%d demonstrations of %d problems, %d delegate", count, len(seen), delegated)
	}
	for d := range g.Demonstrations(task.AgentRole{Agent: "solver"}, 5) {
		if len(d.Segments) != 2 || !d.Segments[1].Sampled || d.Segments[1].Call != nil {
			t.Errorf("%+v", d)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte(`{"question":"a?","answer":"no mark 5"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := settings()
	s.Train = bad
	if _, err := Open(s); err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "row-000001") {
		t.Errorf("%v", err)
	}
	s = settings()
	s.Delegate = 2
	if _, err := Open(s); err == nil {
		t.Error("a share of 2 is accepted")
	}
}
