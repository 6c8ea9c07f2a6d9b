package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// dateIn returns run.date from the configuration in a run's folder.
func dateIn(t *testing.T, dir string) string {
	t.Helper()
	cfg, err := config.Load(filepath.Join(dir, "config.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Run.Date
}

// TestDateIsKept checks that a resumed run keeps its date, and that the date cannot change.
func TestDateIsKept(t *testing.T) {
	dir := t.TempDir()
	withoutColdStart := func(sets ...string) *config.Config {
		return load(t, dir, append(append(sets, "run.steps=1"), noColdStart...)...)
	}
	mustTrain(t, withoutColdStart(), trainer.TrainOptions{})
	today := dateIn(t, dir)
	path := filepath.Join(dir, "config.yaml")
	text, err := os.ReadFile(path)
	if err != nil || today == "" {
		t.Fatalf("run.date is %q, %v", today, err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), today, "2024-07-26", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	mustTrain(t, load(t, dir, append([]string{"run.steps=2"}, noColdStart...)...), trainer.TrainOptions{Resume: true})
	if got := dateIn(t, dir); got != "2024-07-26" {
		t.Errorf("the resumed run's date is %q", got)
	}
	err = trainer.Train(t.Context(), load(t, dir, append([]string{"run.steps=3", "run.date=2025-01-01"}, noColdStart...)...), trainer.TrainOptions{Resume: true, Observer: &recorder{}})
	if err == nil || !strings.Contains(err.Error(), "run.date is 2025-01-01, but in") {
		t.Errorf("another date: %v", err)
	}
	if err := os.WriteFile(path, []byte("run: {unknown: 1}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := trainer.Evaluate(t.Context(), withoutColdStart(), trainer.EvaluateOptions{}); err == nil || !strings.Contains(err.Error(), "reading the run's date") {
		t.Errorf("an unreadable date: %v", err)
	}
}

// TestDateIsTheMainAgents checks that the other workers take the main agent's date, regardless of their folders and clocks, unless their
// configuration sets another date.
func TestDateIsTheMainAgents(t *testing.T) {
	for date, want := range map[string]string{"": "", "run.date=2025-01-01": "run.date is 2025-01-01 here, but 2024-07-26 for the main agent's worker"} {
		url, dirs := startRedis(t), map[string]string{"planner": t.TempDir(), "researcher": t.TempDir()}
		sets := map[string][]string{"planner": {"run.date=2024-07-26"}}
		if date != "" {
			sets["researcher"] = []string{date}
		}
		errs := map[string]error{}
		var mu sync.Mutex
		var work sync.WaitGroup
		for name, dir := range dirs {
			cfg := load(t, dir, append(append(sets[name], "run.steps=1", "run.threads=1", "store.url="+url), noColdStart...)...)
			work.Go(func() {
				err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: []string{name}, Observer: &recorder{}})
				mu.Lock()
				defer mu.Unlock()
				errs[name] = err
			})
		}
		work.Wait()
		if err := errs["researcher"]; want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error with %q", err, want)
			}
			continue
		}
		if err := errors.Join(toTheEnd(errs["planner"]), toTheEnd(errs["researcher"])); err != nil {
			t.Fatal(err)
		}
		if got := dateIn(t, dirs["researcher"]); got != "2024-07-26" {
			t.Errorf("the researcher's date is %q", got)
		}
	}
}
