// Package gsm8k is the task of the published GSM8K files: grade-school word problems whose solutions end in "####
// value".
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package gsm8k

import (
	"fmt"
	"iter"
	"regexp"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// Options configure the task.
type Options struct {
	Train, Eval string
	Seed        uint64
	Main, Sub   verify.Verifier // verifiers; nil Main: numeric; nil Sub: Main
	Delegate    float64         // fraction of the main agent's demonstrations that delegate
}

// Task implements task.Task and task.WithDemonstrations.
type Task struct {
	*jsonl.Task
	opt       Options
	questions []problem // rows of the training file
}

type problem struct{ id, question, solution, value string }

var (
	_ task.Task               = (*Task)(nil)
	_ task.WithDemonstrations = (*Task)(nil)
)

// Open reads both files. Its errors name the file and the row.
func Open(opt Options) (*Task, error) {
	if !(opt.Delegate >= 0 && opt.Delegate <= 1) {
		return nil, fmt.Errorf("gsm8k: delegate %v: must be a fraction from 0 to 1", opt.Delegate)
	}
	if opt.Main == nil {
		numeric, err := verify.New(verify.Options{Kind: verify.Numeric})
		if err != nil {
			return nil, err
		}
		opt.Main = numeric
	}
	train, problems, err := read(opt.Train)
	if err != nil {
		return nil, err
	}
	eval, _, err := read(opt.Eval)
	if err != nil {
		return nil, err
	}
	rows, err := jsonl.New("gsm8k", train, eval, jsonl.Options{Seed: opt.Seed, Main: opt.Main, Sub: opt.Sub})
	if err != nil {
		return nil, err
	}
	return &Task{Task: rows, opt: opt, questions: problems}, nil
}

// calculation matches a calculator mark of the published solutions, as in "48/2 = <<48/2=24>>24".
var calculation = regexp.MustCompile(`<<[^<>]*>>`)

// read splits each published answer into the solution, without its calculator marks, and the value.
func read(path string) ([]jsonl.Row, []problem, error) {
	rows, err := jsonl.ReadRows(path, jsonl.Fields{Question: "question", Answer: "answer"})
	if err != nil {
		return nil, nil, err
	}
	problems := make([]problem, len(rows))
	for i, r := range rows {
		solution, value, ok := strings.Cut(r.Answer, "####")
		value = strings.TrimSpace(value)
		if _, isNumber := verify.ParseNumber(value); !ok || !isNumber {
			return nil, nil, fmt.Errorf("gsm8k: %s: %s: the answer does not end in \"#### number\"", path, r.ID)
		}
		rows[i].Answer = value
		problems[i] = problem{
			id: "train-" + r.ID, question: r.Question, value: value,
			solution: strings.TrimSpace(calculation.ReplaceAllString(solution, "")),
		}
	}
	return rows, problems, nil
}

// Demonstrations yields conversations on n training problems, in an order that depends on the seed. A sub-agent gives
// the published solution. On the fraction Options.Delegate of the problems, the main agent delegates the problem to a
// sub-agent and states the value of its answer. On the others it gives the published solution itself.
func (t *Task) Demonstrations(role task.AgentRole, n int) iter.Seq[task.Demonstration] {
	return func(yield func(task.Demonstration) bool) {
		order := task.NewRowOrder(t.opt.Seed, len(t.questions))
		for i := range int64(n) {
			row, _ := order.At(i)
			d := task.Demonstration{Query: t.questions[row].id, Agent: role.Agent, Segments: t.questions[row].solved()}
			if role.Main {
				d.Segments = t.mainSegments(i, t.questions[row], role.Delegates)
			}
			if !yield(d) {
				return
			}
		}
	}
}

func (t *Task) mainSegments(i int64, p problem, delegates []string) []task.Segment {
	s := task.NewStream(t.opt.Seed, "gsm8k.demonstration", i)
	if len(delegates) == 0 || !s.Chance(t.opt.Delegate) {
		return p.solved()
	}
	delegate := delegates[s.IntN(len(delegates))]
	return []task.Segment{
		{Role: "user", Text: p.question},
		{Role: "assistant", Sampled: true, Call: &task.Delegation{Agent: delegate, Subtask: p.question}},
		{Role: "tool", Text: p.full()},
		{Role: "assistant", Text: "#### " + p.value, Sampled: true},
	}
}

func (p problem) solved() []task.Segment {
	return []task.Segment{{Role: "user", Text: p.question}, {Role: "assistant", Text: p.full(), Sampled: true}}
}

func (p problem) full() string { return p.solution + "\n#### " + p.value }
