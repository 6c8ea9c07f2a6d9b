package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// isComplete reports whether a run's file has the note of its end.
func isComplete(t *testing.T, dir string) bool {
	t.Helper()
	log, err := metrics.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(log.Notes, func(l metrics.Line) bool { return l.Topic == metrics.TopicEnd })
}

// TestTrack forwards a whole run to a program that replaces Python and counts its input.
func TestTrack(t *testing.T) {
	dir := t.TempDir()
	args := []string{filepath.Join("..", "..", "examples", "quickstart", "team.yaml")}
	for _, s := range []string{"run.dir=" + dir, "run.steps=1", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=2", "eval.samples=1",
		"cold_start.demonstrations=none"} {
		args = append(args, "--set", s)
	}
	toTheEnd(t, args...)
	if !isComplete(t, dir) {
		t.Fatal("the file has no note of the run's end: mgrpo track --follow would wait forever")
	}
	counts := filepath.Join(dir, "counts")
	script := "#!/bin/sh\necho '{\"next\": 0}'\ngrep -o '\"index\":' | wc -l >" + counts + "\n"
	if err := os.WriteFile(counts+".sh", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	// Two agents, each with two evaluations and a step.
	if out := succeed(t, "", "track", dir, "--wandb", "agents", "--python", counts+".sh", "--follow"); out != "6 records forwarded\n" {
		t.Errorf("printed %q", out)
	}
	if text, err := os.ReadFile(counts); err != nil || strings.TrimSpace(string(text)) != "6" {
		t.Errorf("%q rows, %v, want 6", text, err)
	}
}

// TestTracking checks that a run whose configuration names a tracker forwards all its own
// records. The run does not begin if the tracker cannot work.
func TestTracking(t *testing.T) {
	dir := t.TempDir()
	counts := filepath.Join(dir, "counts")
	script := "#!/bin/sh\ncase $2 in *find_spec*) exit $MISSING ;; esac\necho '{\"next\": 0}'\ngrep -o '\"index\":' | wc -l >" + counts + "\n"
	if err := os.WriteFile(counts+".sh", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"train", filepath.Join("..", "..", "examples", "quickstart", "team.yaml")}
	for _, s := range []string{"run.dir=" + dir, "run.steps=1", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=2", "eval.samples=1",
		"cold_start.demonstrations=none", "tracking.wandb=agents", "tracking.python=" + counts + ".sh"} {
		args = append(args, "--set", s)
	}
	t.Setenv("MISSING", "1")
	if _, errs, status := run(t, "", args...); status != exitFailed || !strings.Contains(errs, "does not have the package wandb") {
		t.Errorf("without the package: status %d: %s", status, errs)
	}
	t.Setenv("MISSING", "0")
	toTheEnd(t, args[1:]...)
	if text, err := os.ReadFile(counts); err != nil || strings.TrimSpace(string(text)) != "6" { // two evaluations and a step of two agents
		t.Errorf("%q rows, %v, want 6", text, err)
	}
}

func TestTrackUsage(t *testing.T) {
	t.Setenv("MLFLOW_TRACKING_URI", "")
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"runs/none", exitUsage, "--wandb"},
		{"runs/none --wandb p --mlflow e", exitUsage, "--mlflow"},
		{"runs/none --mlflow e", exitFailed, "give the folder of a run"},
	} {
		_, errs, status := run(t, "", append([]string{"track"}, strings.Fields(c.args)...)...)
		if status != c.status || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d: %s", c.args, status, errs)
		}
	}
}
