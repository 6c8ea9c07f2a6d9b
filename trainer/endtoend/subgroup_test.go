package endtoend

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// TestSubAgentGroupIsBatch compares all invocations of a step with each other, as one group. Its advantages
// have weighted mean 0 and deviation 1 over the step. The planner still has one group per query.
func TestSubAgentGroupIsBatch(t *testing.T) {
	dir := t.TempDir()
	seen := mustTrain(t, load(t, dir, "run.steps=1", "eval.every=0", "eval.before=false", "eval.queries=1", "grpo.sub_group=batch"), trainer.TrainOptions{})
	if r := seen.find(t, "step", 1, "researcher"); r.Values["groups"] != 1 || r.Values["groups_degenerate"] != 0 {
		t.Errorf("the researcher has %v groups, %v of them degenerate; want one", r.Values["groups"], r.Values["groups_degenerate"])
	}
	if r := seen.find(t, "step", 1, "planner"); r.Values["groups"] != 4 {
		t.Errorf("the planner has %v groups, want one per query", r.Values["groups"])
	}
	for _, name := range []string{"planner", "researcher"} { // both agents are on the CPU
		if v := seen.find(t, "step", 1, name).Values; v["groups_on_cpu"] == 0 || v["groups_on_cpu"] != v["groups"]+v["groups_empty"] {
			t.Errorf("%s: %v of %v groups were normalised by the CPU's kernel", name, v["groups_on_cpu"], v["groups"]+v["groups_empty"])
		}
	}
	var weight, sum, squares float64
	rewards := map[float64]float64{} // advantage by reward; in one group it is unique
	queries := map[string]bool{}
	for _, l := range readLines(t, filepath.Join(dir, "trajectories", "step-0", "researcher.jsonl")) {
		weight += l.Weight
		sum += l.Weight * l.Advantage
		squares += l.Weight * l.Advantage * l.Advantage
		if l.Weight == 0 {
			continue
		}
		queries[l.Query] = true
		if a, again := rewards[*l.Reward]; again && a != l.Advantage {
			t.Errorf("reward %v has advantages %v and %v", *l.Reward, a, l.Advantage)
		}
		rewards[*l.Reward] = l.Advantage
	}
	if len(queries) < 2 || len(rewards) < 2 {
		t.Fatalf("%d queries and %d different rewards are too few to distinguish groups of a batch from groups of a query", len(queries), len(rewards))
	}
	if mean, variance := sum/weight, squares/weight; math.Abs(mean) > 1e-9 || math.Abs(variance-1) > 1e-9 {
		t.Errorf("advantages of the step have mean %v and variance %v", mean, variance)
	}
}

func readLines(t *testing.T, path string) (lines []archive.Line) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for dec := json.NewDecoder(bufio.NewReader(f)); dec.More(); {
		var l archive.Line
		if err := dec.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}
