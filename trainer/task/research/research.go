// Package research is the built-in generated task: questions with several hops, or with several parts, over a small
// knowledge base. Every query has a new knowledge base, so nothing can be memorised. A planner splits the question into
// hops or parts, and a researcher searches for each. All data are a pure function of the seed. A turn of the compact
// dialect is a list of words, one token each.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package research

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// SearchTool is the name of the only tool. Researchers and single agents have it.
const SearchTool = "search"

// Options configure the task.
type Options struct {
	Seed     uint64
	EvalSize int    // held-out queries
	Noise    Noise  // noise of the scripted experts in demonstrations
	Shape    *Shape // shape of the knowledge bases; nil: defaultShape
}

// Task implements task.Task, task.WithDialect, task.WithTools and task.WithDemonstrations. Query.Data is a *KB.
type Task struct {
	opt   Options
	shape Shape
}

var (
	_ task.Task               = (*Task)(nil)
	_ task.WithDialect        = (*Task)(nil)
	_ task.WithTools          = (*Task)(nil)
	_ task.WithDemonstrations = (*Task)(nil)
)

// New returns the task, or an error for bad settings.
func New(opt Options) (*Task, error) {
	if opt.EvalSize < 1 {
		return nil, fmt.Errorf("research: eval_size %d: must be at least 1", opt.EvalSize)
	}
	if err := opt.Noise.validate(); err != nil {
		return nil, err
	}
	shape := defaultShape()
	if opt.Shape != nil {
		shape = *opt.Shape
	}
	if err := shape.validate(); err != nil {
		return nil, err
	}
	return &Task{opt, shape}, nil
}

// Name returns "research".
func (t *Task) Name() string { return "research" }

// Splits of the generator. A row is (split, index); its id contains both.
const (
	splitTrain = "train"
	splitEval  = "eval"
	splitDemo  = "demo"
)

// Train returns training query i. Every i is a new row.
func (t *Task) Train(i int64) task.Query { return t.query(splitTrain, i) }

// Eval returns held-out query i.
func (t *Task) Eval(i int) task.Query { return t.query(splitEval, int64(i)) }

// EvalSize returns the number of held-out queries.
func (t *Task) EvalSize() int { return t.opt.EvalSize }

// Lookup regenerates a query from its id.
func (t *Task) Lookup(id string) (task.Query, error) {
	split, digits, ok := strings.Cut(id, "-")
	i, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || rowID(split, i) != id || i < 0 {
		return task.Query{}, fmt.Errorf("research: no query %q: ids look like train-000017 or eval-000004", id)
	}
	switch split {
	case splitTrain, splitDemo:
	case splitEval:
		if i >= int64(t.opt.EvalSize) {
			return task.Query{}, fmt.Errorf("research: no query %q: there are %d held-out queries", id, t.opt.EvalSize)
		}
	default:
		return task.Query{}, fmt.Errorf("research: no query %q: no split %q", id, split)
	}
	return t.query(split, i), nil
}

// VerifyMain returns the knowledge base's Score of the answer.
func (t *Task) VerifyMain(_ context.Context, q task.Query, a task.Attempt) (float64, error) {
	kb, err := knowledge(q)
	if err != nil {
		return 0, err
	}
	return kb.Score(a.Answer), nil
}

// VerifySub returns 1 if the answer's last word is the current value of the sub-question "NAME RELATION", and otherwise
// 0. "unknown" is right if and only if the sub-question has no current answer.
func (t *Task) VerifySub(_ context.Context, q task.Query, a task.Attempt) (float64, error) {
	kb, err := knowledge(q)
	if err != nil {
		return 0, err
	}
	question, words := strings.Fields(strings.TrimSuffix(a.Subtask, "?")), strings.Fields(a.Answer)
	if len(question) != 2 {
		return 0, fmt.Errorf("research: sub-task %q is not a name and a relation", a.Subtask)
	}
	return boolScore(len(words) > 0 && words[len(words)-1] == kb.Truth(question[0], question[1])), nil
}

// queryArgument is the only argument of the search tool.
const queryArgument = "query"

// Tools returns the search tool for a researcher or a single agent. A search returns the sentences of the best three
// facts, each with a full stop, or an empty text if it fails.
func (t *Task) Tools(q task.Query, role task.AgentRole) []tool.Tool {
	if grammarRole, err := roleOf(role); err != nil || grammarRole == Planner {
		return nil
	}
	return []tool.Tool{tool.Func(SearchTool, "Search the knowledge base of the question.", queryArgument, "names or relations",
		func(ctx context.Context, words string) (string, error) {
			kb, err := knowledge(q)
			if err != nil || t.fails(ctx) {
				return "", err
			}
			return sentences(kb.Search(strings.Fields(words))), nil
		})}
}

// fails draws whether a search fails. The result depends only on the seed and the position of the call.
func (t *Task) fails(ctx context.Context) bool {
	o, _ := tool.OriginOf(ctx)
	place := fmt.Sprintf("research.failure %s %s %d %d", o.Query, o.Agent, o.Rollout, o.Invocation)
	return task.NewStream(t.opt.Seed, place, int64(o.Call)).Chance(t.shape.Failures)
}

func (t *Task) query(split string, i int64) task.Query {
	kb := makeKB(t.shape, task.NewStream(t.opt.Seed, "research."+split, i))
	id := rowID(split, i)
	return task.Query{ID: id, Row: id, Text: kb.Question(), Answer: kb.Answer(), Data: &kb}
}

func rowID(split string, i int64) string { return fmt.Sprintf("%s-%06d", split, i) }

func knowledge(q task.Query) (*KB, error) {
	kb, ok := q.Data.(*KB)
	if !ok {
		return nil, fmt.Errorf("research: query %q has no knowledge base: rebuild it with Lookup", q.ID)
	}
	return kb, nil
}

func boolScore(right bool) float64 {
	if right {
		return 1
	}
	return 0
}
