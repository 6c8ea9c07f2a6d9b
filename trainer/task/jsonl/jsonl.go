// Package jsonl is the task for a user's questions and answers: a training file and a held-out file of rows (JSON lines,
// a JSON array or Parquet).
package jsonl

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// Settings of the task.
type Settings struct {
	Train, Eval string // files
	Fields      Fields
	Layout      string          // one of Layouts, whose fields are known; "": Fields
	Seed        uint64          // of the training order
	Main        verify.Verifier // scores the main agent's answer
	Sub         verify.Verifier // scores a sub-agent's answer to its sub-task; nil: Main
	NeedParts   bool            // a row without parts is an error
}

// Task implements task.Task.
type Task struct {
	name        string
	train, eval []Row
	order       *task.Order
	main, sub   verify.Verifier
	byID        map[string]place
}

// place is the position of a row: its file and its index there.
type place struct {
	split string
	index int
}

var _ task.Task = (*Task)(nil)

const (
	splitTrain = "train"
	splitEval  = "eval"
)

// Open reads both files.
func Open(s Settings) (*Task, error) {
	reshape, fields := layouts[s.Layout], s.Fields
	if s.Layout != "" {
		if reshape == nil {
			return nil, fmt.Errorf("jsonl: layout %q: must be one of %s", s.Layout, strings.Join(Layouts(), ", "))
		}
		fields = DefaultFields()
	}
	train, err := readRows(s.Train, fields, reshape)
	if err != nil {
		return nil, err
	}
	eval, err := readRows(s.Eval, fields, reshape)
	if err != nil {
		return nil, err
	}
	return New("jsonl", train, eval, s)
}

// New builds a task from rows in memory. It ignores Settings.Train, Eval and Fields.
func New(name string, train, eval []Row, s Settings) (*Task, error) {
	if len(train) == 0 || len(eval) == 0 {
		return nil, fmt.Errorf("%s: needs training rows and held-out rows, but has %d and %d", name, len(train), len(eval))
	}
	if s.Main == nil {
		return nil, fmt.Errorf("%s: no verifier", name)
	}
	t := &Task{name: name, train: train, eval: eval, order: task.NewOrder(s.Seed, len(train)), main: s.Main, sub: s.Sub, byID: map[string]place{}}
	if t.sub == nil {
		t.sub = t.main
	}
	for split, rows := range map[string][]Row{splitTrain: train, splitEval: eval} {
		for i, r := range rows {
			if s.NeedParts && len(r.Parts) == 0 {
				return nil, fmt.Errorf("%s: the %s row %s has no parts, with which sub-agents' answers are to be compared", name, split, r.ID)
			}
			t.byID[split+"-"+r.ID] = place{split, i}
		}
	}
	return t, nil
}

// Name of the task.
func (t *Task) Name() string { return t.name }

// Train returns the i-th training query. Every epoch visits each row once, in its own order.
func (t *Task) Train(i int64) task.Query {
	row, epoch := t.order.At(i)
	q := query(splitTrain, t.train[row])
	q.ID = task.VisitID(q.Row, epoch)
	return q
}

// Eval returns held-out row i.
func (t *Task) Eval(i int) task.Query { return query(splitEval, t.eval[i]) }

// EvalSize is the number of held-out rows.
func (t *Task) EvalSize() int { return len(t.eval) }

// Lookup returns the query with the given id, epoch included.
func (t *Task) Lookup(id string) (task.Query, error) {
	row, err := task.RowOf(id)
	if err != nil {
		return task.Query{}, err
	}
	at, ok := t.byID[row]
	if !ok {
		return task.Query{}, fmt.Errorf("%s: no row %.150q: do all servers read the same files?", t.name, row)
	}
	rows := t.train
	if at.split == splitEval {
		rows = t.eval
	}
	q := query(at.split, rows[at.index])
	q.ID = id
	return q, nil
}

// VerifyMain scores an answer to the question.
func (t *Task) VerifyMain(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	return t.score(ctx, t.main, q, a)
}

// VerifySub scores an answer to a sub-task with the verifier of sub-agents' answers. verify.Parts compares it with the
// answer of a part; other verifiers compare it with that of the whole question.
func (t *Task) VerifySub(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	return t.score(ctx, t.sub, q, a)
}

func (t *Task) score(ctx context.Context, v verify.Verifier, q task.Query, a task.Attempt) (float64, error) {
	choices, _ := q.Data.([]string)
	score, err := v.Score(ctx, verify.Case{Query: q, Attempt: a, Choices: choices})
	if err != nil {
		return 0, fmt.Errorf("%s: query %s: %w", t.name, q.ID, err)
	}
	return score, nil
}

// Close closes the verifiers.
func (t *Task) Close() error { return errors.Join(verify.Close(t.main), verify.Close(t.sub)) }

// query makes a row's query. Its text lists the choices below the question, with the letters of the choice verifier.
func query(split string, r Row) task.Query {
	id := split + "-" + r.ID
	var text strings.Builder
	text.WriteString(r.Question)
	for i, choice := range r.Choices {
		fmt.Fprintf(&text, "\n(%c) %s", 'A'+i, choice)
	}
	return task.Query{ID: id, Row: id, Text: text.String(), Answer: r.Answer, Accepted: r.Accepted, Parts: r.Parts, Kind: r.Kind, Level: r.Level, Columns: r.Columns, Data: r.Choices}
}
