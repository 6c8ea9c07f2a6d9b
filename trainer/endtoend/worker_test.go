package endtoend

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer"
)

// TestFirstPhaseWaitsForColdStarts trains a planner without a cold start and a researcher with one.
// The planner reports that it waits for the researcher, and begins its first conversation afterwards.
func TestFirstPhaseWaitsForColdStarts(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	observer := &recorder{on: func(agent, phase string, _ int) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, agent+" "+phase)
	}}
	cfg := load(t, t.TempDir(), "run.steps=1", "agents.planner.cold_start.steps=0")
	if err := toTheEnd(trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: observer})); err != nil {
		t.Fatal(err)
	}
	if _, ok := observer.find(t, "step", 1, "planner").Values["agree_seconds"]; !ok {
		t.Error("the step has no agree_seconds")
	}
	first := slices.Index(seen, "planner eval-0")
	if first < 0 || !slices.Contains(seen[:first], "planner waits for researcher") {
		t.Errorf("the planner does not report that it waits: %v", slices.Compact(seen))
	}
	if slices.ContainsFunc(seen[first:], func(s string) bool { return strings.HasSuffix(s, "cold start") }) {
		t.Errorf("the planner began during a cold start: %v", slices.Compact(seen))
	}
}

// TestCheckpointTrims checks that a checkpoint deletes the store's data of earlier phases.
func TestCheckpointTrims(t *testing.T) {
	url := startRedis(t)
	mustTrain(t, load(t, t.TempDir(), append(noColdStart, "run.steps=3", "store.url="+url)...), trainer.TrainOptions{})
	opt, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	raw := redis.NewClient(opt)
	defer raw.Close()
	keys, err := raw.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	phase := regexp.MustCompile(`:(step|eval|checkpoint|manifest)-[0-9]+`)
	for _, key := range keys {
		if at := phase.FindString(key); at != "" && at != ":eval-3" && at != ":checkpoint-3" && at != ":manifest-3" {
			t.Errorf("%s still exists", key)
		}
	}
	if !slices.ContainsFunc(keys, func(key string) bool { return strings.HasSuffix(key, "outcome:eval-3") }) {
		t.Errorf("the newest evaluation is gone: %v", keys)
	}
}
