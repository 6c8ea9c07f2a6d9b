package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/task/research"
)

// Two samples of each question, of which the second is right and, for two hops, of an invalid format.
func TestAccuracyByHops(t *testing.T) {
	questions, err := research.New(research.Settings{Seed: 1, EvalSize: 192})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "planner.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 30 {
		q := questions.Eval(i)
		hops := len(q.Data.(*research.KB).Relations)
		for k, answer := range []string{research.Unknown, q.Answer} {
			line := archive.Line{Trajectory: agent.Trajectory{Query: q.ID, Rollout: k, Answer: answer, FormatValid: k == 0 || hops != 2}}
			if err := json.NewEncoder(f).Encode(line); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := accuracyByHops(t.Context(), questions, path)
	if want := []float64{0.5, 0, 0.5}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if err := os.WriteFile(path, []byte(`{"query":"nothing-1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := accuracyByHops(t.Context(), questions, path); err == nil {
		t.Error("a question that does not exist was graded")
	}
}
