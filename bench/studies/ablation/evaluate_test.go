package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// Each question has two samples, one with one delegation and one with three. The second sample is right, and for two hops its format is invalid.
func TestDescribe(t *testing.T) {
	questions, err := research.New(research.Options{Seed: 1, EvalSize: 192})
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
			line := archive.Line{Trajectory: agent.Trajectory{Row: agent.Row{Query: q.ID, Rollout: k}, Answer: answer, FormatValid: k == 0 || hops != 2, Calls: map[string]int{"researcher": 1 + k, "other": k}}}
			if err := json.NewEncoder(f).Encode(line); err != nil {
				t.Fatal(err)
			}
		}
	}
	var out Outcome
	if err := describe(t.Context(), &out, questions, path); err != nil {
		t.Fatal(err)
	}
	if want := []float64{0.5, 0, 0.5}; !reflect.DeepEqual(out.Hops, want) {
		t.Errorf("by hops %v; want %v", out.Hops, want)
	}
	for i := range 30 {
		want := 0.5
		if len(questions.Eval(i).Data.(*research.KB).Relations) == 2 {
			want = 0
		}
		if len(out.Questions) != 30 || out.Questions[i] != want {
			t.Fatalf("results by question are %v, want %v for question %d", out.Questions, want, i)
		}
	}
	if want := (Calls{Mean: 2, Deviation: math.Sqrt2, Widest: [2]int{1, 3}, Rollouts: []int{0, 30, 0, 30}}); !reflect.DeepEqual(out.Calls, want) {
		t.Errorf("calls %+v, want %+v", out.Calls, want)
	}
	if err := os.WriteFile(path, []byte(`{"query":"nothing-1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := describe(t.Context(), &out, questions, path); err == nil {
		t.Error("an unknown question was graded")
	}
}
