package main

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// measures asks how many of the smallest unit are in one of the largest: "how many pint in one cask ?". Every query
// has its own table of units, so a model cannot learn the answers by heart. A planner asks a clerk for one unit after the
// other, and the clerk looks each up in the query's table.
type measures struct {
	seed   uint64
	held   int // held-out queries
	answer verify.Verifier
}

// A task implements task.Task. The other interfaces are optional.
var (
	_ task.Task               = (*measures)(nil)
	_ task.WithTools          = (*measures)(nil)
	_ task.WithDemonstrations = (*measures)(nil)
)

func newMeasures(seed uint64, held int) (*measures, error) {
	answer, err := verify.New(verify.Options{Kind: verify.Numeric})
	return &measures{seed, held, answer}, err
}

// Tables are made of units and factors.
var (
	units   = strings.Fields("cask tub jug pint cup dram sack bag box tray case crate")
	factors = []int{2, 3, 4, 5}
)

// table maps a unit to its amount in the next smaller unit: "cask" to "4 jug".
type table map[string]string

// query returns query i of a split. It is a pure function of the seed, so every agent's server makes the same query.
func (m *measures) query(split string, i int64) task.Query {
	random := task.NewStream(m.seed, split, i)
	names := append([]string(nil), units...)
	task.Shuffle(random, names)
	large, middle, small := names[0], names[1], names[2]
	a, b := factors[random.IntN(len(factors))], factors[random.IntN(len(factors))]
	id := fmt.Sprintf("%s-%d", split, i)
	return task.Query{
		ID: id, Row: id, Text: fmt.Sprintf("how many %s in one %s ?", small, large), Answer: strconv.Itoa(a * b),
		Data: table{large: fmt.Sprint(a, " ", middle), middle: fmt.Sprint(b, " ", small)},
	}
}

func (m *measures) Name() string             { return "measures" }
func (m *measures) Train(i int64) task.Query { return m.query("train", i) }
func (m *measures) Eval(i int) task.Query    { return m.query("eval", int64(i)) }
func (m *measures) EvalSize() int            { return m.held }

// Lookup makes a query again from its id. A sub-agent's server receives only the id.
func (m *measures) Lookup(id string) (task.Query, error) {
	split, number, _ := strings.Cut(id, "-")
	i, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !slices.Contains([]string{"train", "eval", "demonstration"}, split) {
		return task.Query{}, fmt.Errorf("measures: there is no query %q", id)
	}
	return m.query(split, i), nil
}

// VerifyMain scores the planner's answer with a verifier of the library.
func (m *measures) VerifyMain(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	return m.answer.Score(ctx, verify.Case{Query: q, Attempt: a})
}

// VerifySub scores a clerk's answer with our own verifier, which expects the requested row of the table.
func (m *measures) VerifySub(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	return rowOfTable{}.Score(ctx, verify.Case{Query: q, Attempt: a})
}

type rowOfTable struct{}

// Score returns 1 for the row of the requested unit, else 0. An error would mean that the answer cannot be scored.
func (rowOfTable) Score(_ context.Context, c verify.Case) (float64, error) {
	row, known := c.Query.Data.(table)[strings.TrimSpace(c.Attempt.Subtask)]
	if known && strings.TrimSpace(c.Attempt.Answer) == row {
		return 1, nil
	}
	return 0, nil
}

// Tools returns a tool that looks units up in the query's table, for the clerk only. The prompt is made with the zero
// Query, which has no table.
func (m *measures) Tools(q task.Query, role task.AgentRole) []tool.Tool {
	if role.Main {
		return nil
	}
	rows, _ := q.Data.(table)
	return []tool.Tool{tool.Func("measure", "Returns how much one of a unit is.", "unit", "its name",
		func(_ context.Context, unit string) (string, error) {
			return cmp.Or(rows[strings.TrimSpace(unit)], "none"), nil
		})}
}

// Demonstrations returns conversations for the cold start. They teach the form of a conversation and also bad habits: the
// planner often stops after the first unit, and the clerk often guesses. Training must replace these habits.
func (m *measures) Demonstrations(role task.AgentRole, n int) iter.Seq[task.Demonstration] {
	return func(yield func(task.Demonstration) bool) {
		for i := range int64(n) {
			q, habits := m.query("demonstration", i), task.NewStream(m.seed, "habits of "+role.Agent, i)
			d := task.Demonstration{Query: q.ID, Agent: role.Agent}
			if role.Main {
				d.Segments = planned(q, role.Delegates[0], habits)
			} else {
				d.Segments = lookedUp(q, habits)
			}
			if !yield(d) {
				return
			}
		}
	}
}

func planned(q task.Query, clerk string, habits *task.Stream) []task.Segment {
	rows, words := q.Data.(table), strings.Fields(q.Text)
	small, unit, product := words[2], words[5], 1
	conversation := []task.Segment{{Role: "user", Text: q.Text}}
	for unit != small && (product == 1 || habits.Chance(0.5)) {
		var factor int
		conversation = append(conversation, task.Segment{Role: "assistant", Sampled: true, Call: &task.Delegation{Agent: clerk, Subtask: " " + unit + " "}},
			task.Segment{Role: "tool", Text: rows[unit]})
		fmt.Sscan(rows[unit], &factor, &unit)
		product *= factor
	}
	return append(conversation, task.Segment{Role: "assistant", Sampled: true, Text: strconv.Itoa(product)})
}

func lookedUp(q task.Query, habits *task.Stream) []task.Segment {
	words := strings.Fields(q.Text)
	unit := words[5]
	row := q.Data.(table)[unit]
	if habits.Chance(0.5) {
		fmt.Sscan(row, new(int), &unit)
		row = q.Data.(table)[unit]
	}
	conversation := []task.Segment{{Role: "user", Text: unit}}
	if habits.Chance(0.5) {
		row = fmt.Sprint(factors[habits.IntN(len(factors))], " ", units[habits.IntN(len(units))])
	} else {
		conversation = append(conversation, task.Segment{Role: "assistant", Sampled: true, Text: call("measure", "unit", unit)},
			task.Segment{Role: "tool", Text: row})
	}
	return append(conversation, task.Segment{Role: "assistant", Sampled: true, Text: row})
}

// call returns the text of a tool call. The spaces make the value a separate word for our tokenizer.
func call(name, argument, value string) string {
	return fmt.Sprintf("<tool_call>\n{%q:%q,\"arguments\":{%q:%q}}\n</tool_call>", "name", name, argument, " "+value+" ")
}
