// Package jsonl is the task for a user's own questions and answers. It reads a training file and a held-out file of
// rows (JSON lines, a JSON array, Parquet, or separated values).
package jsonl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// Options configure the task.
type Options struct {
	Train, Eval        string // files
	Fields             Fields
	Layout             string          // one of Layouts, which determines the fields; "" or "rows": Fields
	Sets               []Set           // further held-out queries
	Stages             []Stage         // stages of a curriculum
	Seed               uint64          // seed of the training order
	Main               verify.Verifier // scores the main agent's answer
	Sub                verify.Verifier // scores a sub-agent's answer to its sub-task; nil: Main
	NeedParts          bool            // a training row without parts is an error
	AnswersNameOptions bool            // answers of rows with choices may be the numbers or labels of options
	Unread             bool            // the verifier need not be able to read the answers
}

// Set is a further file of held-out queries. Evaluations report each set by its name.
type Set struct{ Name, Path, Layout string }

// Task implements task.Task, task.WithEvalSets and task.WithCurriculum.
type Task struct {
	name        string
	train, eval []Row // eval has the rows of all sets, one set after another
	sets        []set // sets within eval, in order
	order       *task.RowOrder
	stages      []stage
	main, sub   verify.Verifier
	opt         Options
	byID        map[string]splitIndex
}

// splitIndex is the position of a row in train or in eval.
type splitIndex struct {
	held  bool
	index int
}

// set is a range of eval: its rows from first up to the next set. Its name is "" for the rows of Options.Eval.
type set struct {
	name        string
	first, size int
}

var (
	_ task.Task           = (*Task)(nil)
	_ task.WithEvalSets   = (*Task)(nil)
	_ task.WithCurriculum = (*Task)(nil)
)

const (
	splitTrain = "train"
	splitEval  = "eval"
)

// Open reads all files.
func Open(opt Options) (*Task, error) {
	train, err := opt.read(opt.Train, opt.Layout)
	if err != nil {
		return nil, err
	}
	eval, err := opt.read(opt.Eval, opt.Layout)
	if err != nil {
		return nil, err
	}
	sets := opt.Sets
	opt.Sets = nil // New cannot read files
	t, err := New("jsonl", train, eval, opt)
	if err != nil {
		return nil, err
	}
	for _, further := range sets {
		rows, err := opt.read(further.Path, further.Layout)
		if err == nil {
			err = t.add(further.Name, rows)
		}
		if err != nil {
			return nil, fmt.Errorf("evaluation set %s: %w", further.Name, err)
		}
	}
	return t, nil
}

// read reads a file with the given layout.
func (s Options) read(path, layout string) ([]Row, error) {
	if layout == "" || layout == "rows" {
		return ReadRows(path, s.Fields)
	}
	reshape, ok := layouts[layout]
	if !ok {
		return nil, fmt.Errorf("jsonl: layout %q: must be rows or one of %s", layout, strings.Join(Layouts(), ", "))
	}
	return readRows(path, DefaultFields(), reshape)
}

// New builds a task from rows in memory. It ignores Options.Train, Eval, Fields and Layout, and refuses Sets, which are files.
func New(name string, train, eval []Row, opt Options) (*Task, error) {
	if len(train) == 0 || len(eval) == 0 {
		return nil, fmt.Errorf("%s: needs training rows and held-out rows, but has %d and %d", name, len(train), len(eval))
	}
	if opt.Main == nil {
		return nil, fmt.Errorf("%s: no verifier", name)
	}
	if len(opt.Sets) > 0 {
		return nil, fmt.Errorf("%s: Sets are files, which only Open reads", name)
	}
	train, err := opt.checked(name, splitTrain, train)
	if err != nil {
		return nil, err
	}
	t := &Task{name: name, opt: opt, train: train, order: task.NewRowOrder(opt.Seed, len(train)), main: opt.Main, sub: opt.Sub, byID: map[string]splitIndex{}}
	if t.sub == nil {
		t.sub = t.main
	}
	for i, r := range train {
		if opt.NeedParts && len(r.Parts) == 0 {
			return nil, fmt.Errorf("%s: the training row %s has no parts, but sub-agents' answers are compared with parts", name, r.ID)
		}
		if err := t.place(splitTrain, r, splitIndex{false, i}); err != nil {
			return nil, err
		}
	}
	for _, of := range opt.Stages {
		added, err := of.open(opt.Seed, train)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t.stages = append(t.stages, added)
	}
	return t, t.add("", eval)
}

// add adds the rows of a set to eval.
func (t *Task) add(name string, rows []Row) error {
	added := set{name, len(t.eval), len(rows)}
	rows, err := t.opt.checked(t.name, added.split(), rows)
	if err != nil {
		return err
	}
	for i, r := range rows {
		if err := t.place(added.split(), r, splitIndex{true, added.first + i}); err != nil {
			return err
		}
	}
	t.eval, t.sets = append(t.eval, rows...), append(t.sets, added)
	return nil
}

// split returns the beginning of the ids of the set's queries.
func (s set) split() string {
	if s.name == "" {
		return splitEval
	}
	return splitEval + "." + s.name
}

func (t *Task) place(split string, r Row, at splitIndex) error {
	id := split + "-" + r.ID
	if _, taken := t.byID[id]; taken {
		return fmt.Errorf("%s: two sets have a query %s: rename one of the sets", t.name, id)
	}
	t.byID[id] = at
	return nil
}

// checked returns rows whose answers the verifier can read. Its error names the first row with another answer, and their number.
func (s Options) checked(name, split string, rows []Row) ([]Row, error) {
	rows = slices.Clone(rows)
	var first error
	bad := 0
	for i := range rows {
		r := &rows[i]
		var err error
		if s.AnswersNameOptions {
			err = r.nameOptions()
		}
		if err == nil && !s.Unread {
			err = verify.Readable(s.Main, query(split, *r), r.Choices)
		}
		if err != nil {
			if bad++; first == nil {
				first = fmt.Errorf("row %s of the queries for %s: %w", r.ID, split, err)
			}
		}
	}
	if bad > 1 {
		first = fmt.Errorf("%w; so in %d of %d rows", first, bad, len(rows))
	}
	if first != nil {
		return nil, fmt.Errorf("%s: %w", name, first)
	}
	return rows, nil
}

// Name returns the name of the task.
func (t *Task) Name() string { return t.name }

// Train returns the i-th training query. Every epoch visits each row once, in its own order.
func (t *Task) Train(i int64) task.Query {
	row, epoch := t.order.At(i)
	q := query(splitTrain, t.train[row])
	q.ID = task.VisitID(q.Row, epoch)
	return q
}

// Eval returns held-out row i, over all sets.
func (t *Task) Eval(i int) task.Query {
	of := t.sets[0]
	for _, s := range t.sets[1:] {
		if i >= s.first {
			of = s
		}
	}
	q := query(of.split(), t.eval[i])
	q.Set = of.name
	return q
}

// EvalSize returns the number of held-out rows of all sets.
func (t *Task) EvalSize() int { return len(t.eval) }

// EvalSets returns the number of rows of each set.
func (t *Task) EvalSets() []int {
	sizes := make([]int, len(t.sets))
	for i, s := range t.sets {
		sizes[i] = s.size
	}
	return sizes
}

// Lookup returns the query with the given id, which includes the epoch.
func (t *Task) Lookup(id string) (task.Query, error) {
	row, err := task.RowOf(id)
	if err != nil {
		return task.Query{}, err
	}
	at, ok := t.byID[row]
	if !ok {
		return task.Query{}, fmt.Errorf("%s: no row %.150q: do all servers read the same files?", t.name, row)
	}
	var q task.Query
	if at.held {
		q = t.Eval(at.index)
	} else {
		q = query(splitTrain, t.train[at.index])
	}
	q.ID = id
	return q, nil
}

// VerifyMain scores an answer to the question.
func (t *Task) VerifyMain(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	return t.score(ctx, t.main, q, a)
}

// VerifySub scores an answer to a sub-task with the verifier for sub-agents. verify.Parts compares it with the answer
// of a part. Other verifiers compare it with the answer of the whole question.
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

// query makes a query from a row. Its text lists the choices below the question, with the letters that the choice
// verifier uses.
func query(split string, r Row) task.Query {
	id := split + "-" + r.ID
	var text strings.Builder
	text.WriteString(r.Question)
	for i, choice := range r.Choices {
		fmt.Fprintf(&text, "\n(%c) %s", 'A'+i, choice)
	}
	return task.Query{ID: id, Row: id, Text: text.String(), Answer: r.Answer, Accepted: r.Accepted, Parts: r.Parts, Kind: r.Kind, Level: r.Level,
		Columns: r.Columns, Data: r.Choices}
}
