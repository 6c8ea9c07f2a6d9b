package endtoend

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// TestResample checks that queries whose rollouts all have the same reward are replaced, up to
// the limit, for all agents alike. A repeated step has the same queries and final weights.
func TestResample(t *testing.T) {
	const bound = 3
	sets := []string{"run.steps=2", "grpo.rollouts=2", "eval.before=false", "eval.every=0", "eval.queries=2"}
	train := func(dir string, more ...string) *recorder {
		return mustTrain(t, load(t, dir, slices.Concat(sets, more)...), trainer.TrainOptions{})
	}
	plain := train(t.TempDir())
	dirs := []string{t.TempDir(), t.TempDir()}
	first := train(dirs[0], "grpo.resample=3")
	sameNumbers(t, train(dirs[1], "grpo.resample=3").numbers(), first.numbers())
	sameWeights(t, digests(t, dirs[1], 2), digests(t, dirs[0], 2))

	before, after := plain.find(t, "step", 1, "planner").Values, first.find(t, "step", 1, "planner").Values
	n := after["queries_replaced"]
	if n < 1 || n > bound || before["queries_replaced"] != 0 {
		t.Errorf("%v queries were replaced, and %v without resampling", n, before["queries_replaced"])
	}
	if after["groups"] != 4 || after["trajectories"] != 2*(4+n) || after["groups_degenerate"] > before["groups_degenerate"] || after["rollouts_removed"] != 0 {
		t.Errorf("%v after %v", after, before)
	}
	if after["groups_degenerate"] > 0 && n < bound {
		t.Errorf("%v groups are degenerate, but only %v queries were replaced", after["groups_degenerate"], n)
	}
	var queries []string
	for _, agent := range []string{"planner", "researcher"} {
		var trained []string
		text, err := os.ReadFile(filepath.Join(dirs[0], "ledger", agent+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := bytes.Cut(text, []byte("\n"))
		var line archive.LedgerLine
		if err := json.Unmarshal(first, &line); err != nil {
			t.Fatal(err)
		}
		for _, r := range line.Rollouts {
			query, _, _ := strings.Cut(r.ID, "/")
			trained = append(trained, query)
		}
		trained = slices.Compact(trained)
		if queries == nil {
			queries = trained
		}
		if len(trained) != 4 || !slices.Equal(trained, queries) || !slices.ContainsFunc(trained, func(q string) bool { return strings.Contains(q, "42949672") }) {
			t.Errorf("%s learned from %v, the planner from %v", agent, trained, queries)
		}
	}
	if said, err := os.ReadFile(filepath.Join(dirs[0], "trajectories", "step-0", "planner.jsonl")); err != nil || strings.Count(string(said), "\n") != 2*(4+int(n)) {
		t.Errorf("the trajectories of replaced queries are missing: %v", err)
	}
}

// TestResampleAfterLostWorker starts from the published outcomes of a lost worker, including
// the outcomes of replaced queries. Playing the step again gives the same result.
func TestResampleAfterLostWorker(t *testing.T) {
	url := startRedis(t)
	opt, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	raw := redis.NewClient(opt)
	defer raw.Close()
	sets := []string{"run.steps=1", "grpo.rollouts=2", "grpo.resample=3", "eval.before=false", "eval.queries=2", "store.url=" + url}
	key := func(run string) string { return "mgrpo:{" + run + "}:outcome:step-0" }
	seen, published := &recorder{}, map[string]string{}
	whenStepped := recordFunc(func(r metrics.Record) {
		if r.Kind == metrics.KindStep && r.Agent == "planner" {
			published, err = raw.HGetAll(t.Context(), key("first")).Result()
		}
	})
	if err := trainer.Train(t.Context(), load(t, t.TempDir(), append(sets, "run.name=first")...), trainer.TrainOptions{Observer: metrics.Observers{seen, whenStepped}}); err != nil {
		t.Fatal(err)
	}
	if replaced := seen.find(t, "step", 1, "planner").Values["queries_replaced"]; err != nil || replaced < 1 || len(published) != 2*(4+int(replaced)) {
		t.Fatalf("%d outcomes of %v replaced queries and 4 others, %v", len(published), replaced, err)
	}
	if err := raw.HSet(t.Context(), key("second"), published).Err(); err != nil {
		t.Fatal(err)
	}
	sameNumbers(t, mustTrain(t, load(t, t.TempDir(), append(sets, "run.name=second")...), trainer.TrainOptions{}).numbers(), seen.numbers())
}

// recordFunc is an observer that calls the function with each record.
type recordFunc func(metrics.Record)

func (f recordFunc) Report(r metrics.Record) { f(r) }
func (recordFunc) Progress(metrics.Progress) {}
func (recordFunc) Note(metrics.Note)         {}
