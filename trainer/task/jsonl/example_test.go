package jsonl_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// lengthScorer scores an answer by its length, up to the length of the reference.
type lengthScorer struct{}

func (lengthScorer) Score(_ context.Context, c verify.Case) (float64, error) {
	return min(float64(len(c.Attempt.Answer))/float64(len(c.Query.Answer)), 1), nil
}

// Rows of a file, scored by a verifier of one's own.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "rows-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	train, held := filepath.Join(dir, "train.jsonl"), filepath.Join(dir, "eval.jsonl")
	for path, row := range map[string]string{train: `{"question": "The longest river?", "answer": "Nile"}`, held: `{"question": "And the widest?", "answer": "Amazon"}`} {
		if err := os.WriteFile(path, []byte(row), 0o644); err != nil {
			panic(err)
		}
	}
	t, err := jsonl.Open(jsonl.Options{Train: train, Eval: held, Fields: jsonl.DefaultFields(), Main: lengthScorer{}})
	if err != nil {
		panic(err)
	}
	q := t.Eval(0)
	score, err := t.VerifyMain(context.Background(), q, task.Attempt{Agent: "planner", Answer: "Ama"})
	fmt.Println(q.Text, score, err)
	// Output: And the widest? 0.5 <nil>
}
