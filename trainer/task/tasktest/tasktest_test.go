package tasktest

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// faulty is a task with one fault, or none.
type faulty struct {
	fault string
	calls *int
}

func (f faulty) query(id string) task.Query {
	q := task.Query{ID: id, Row: id, Text: "?"}
	switch f.fault {
	case "impure":
		*f.calls++
		q.Text = fmt.Sprint(*f.calls)
	case "row":
		q.Row = "other"
	}
	return q
}

func (f faulty) Name() string             { return "faulty" }
func (f faulty) Train(i int64) task.Query { return f.query(fmt.Sprint("train-", i)) }
func (f faulty) EvalSize() int            { return 3 }

func (f faulty) EvalSets() []int {
	if f.fault == "size" {
		return []int{2}
	}
	return []int{1, 2}
}

func (f faulty) Eval(i int) task.Query {
	if f.fault == "id" {
		i = min(i, 1)
	}
	q := f.query(fmt.Sprint("eval-", i))
	if i > 0 && f.fault != "name" || i == 2 && f.fault == "name" {
		q.Set = "hard"
	}
	return q
}

func (f faulty) Lookup(id string) (task.Query, error) {
	var i int
	if _, err := fmt.Sscanf(id, "eval-%d", &i); err == nil && f.fault != "lookup" {
		return f.Eval(i), nil
	}
	if id == "" && f.fault != "empty" || strings.HasPrefix(id, "demo") {
		return task.Query{}, fmt.Errorf("no query %q", id)
	}
	return f.query(id), nil
}

func (faulty) VerifyMain(context.Context, task.Query, task.Attempt) (float64, error) { return 0, nil }
func (faulty) VerifySub(context.Context, task.Query, task.Attempt) (float64, error)  { return 0, nil }

func (f faulty) Tools(q task.Query, _ task.AgentRole) []tool.Tool {
	about := "Searches."
	if f.fault == "tool" {
		about += q.ID
	}
	return []tool.Tool{tool.Func("search", about, "query", "words", nil)}
}

func (f faulty) Demonstrations(_ task.AgentRole, n int) iter.Seq[task.Demonstration] {
	return func(yield func(task.Demonstration) bool) {
		for i := range n {
			d := task.Demonstration{Query: fmt.Sprint("train-", i), Segments: []task.Segment{{Role: "assistant", Sampled: true}}}
			switch f.fault {
			case "demonstration":
				d.Query = "demo"
			case "segment":
				d.Segments = nil
			case "order":
				*f.calls++
				d.Segments[0].Text = fmt.Sprint(*f.calls)
			}
			if !yield(d) {
				return
			}
		}
	}
}

// faults records errors in place of a test.
type faults struct {
	testing.TB
	texts []string
}

func (*faults) Helper() {}
func (f *faults) Errorf(format string, args ...any) {
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}
func (f *faults) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// TestCheck: a task without a fault passes, and each fault is reported.
func TestCheck(t *testing.T) {
	role := task.AgentRole{Agent: "planner", Main: true}
	Check(t, faulty{calls: new(int)}, role)
	for fault, want := range map[string]string{
		"impure": "the second time", "row": `has the row "other"`, "size": "the evaluation sets have [2] queries, but EvalSize is 3", "id": "two held-out queries have the id",
		"name": `is in set "hard", the first query of the set in ""`, "lookup": `Lookup("eval-1") returns`, "empty": "for an empty id", "tool": "the tools of planner on query",
		"demonstration": `a demonstration for planner is of query "demo"`, "segment": "has no sampled segment", "order": "differ the second time",
	} {
		seen := &faults{}
		func() {
			defer func() {
				if stopped := recover(); stopped != nil {
					seen.texts = append(seen.texts, fmt.Sprint(stopped))
				}
			}()
			Check(seen, faulty{fault, new(int)}, role)
		}()
		if all := strings.Join(seen.texts, "\n"); !strings.Contains(all, want) {
			t.Errorf("fault %s: got %q, want %q", fault, all, want)
		}
	}
}
