package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/metrics"
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

// trackable returns the arguments of a training with one step in the folder dir, after which forwarded returns the number of
// rows that the stand-in for W&B received. Two agents make two evaluations and a step each.
func trackable(t *testing.T, dir string, sets ...string) (args []string, forwarded func() int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	standIn, err := filepath.Abs("../../trainer/show/track/testdata/standin")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", standIn)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	t.Setenv("STAND_IN_LOG", log)
	args = []string{filepath.Join("..", "..", "examples", "quickstart", "team.yaml")}
	for _, s := range append([]string{"run.dir=" + dir, "run.steps=1", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=2", "eval.samples=1",
		"cold_start.demonstrations=none"}, sets...) {
		args = append(args, "--set", s)
	}
	return args, func() int {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Error(err)
		}
		return strings.Count(string(text), `["log", `)
	}
}

// TestTrack forwards a whole run.
func TestTrack(t *testing.T) {
	dir := t.TempDir()
	args, forwarded := trackable(t, dir)
	trainToEnd(t, args...)
	if !isComplete(t, dir) {
		t.Fatal("the file has no note of the run's end: mgrpo track --follow would wait forever")
	}
	if out := mustRun(t, "", "track", dir, "--wandb", "agents", "--follow"); out != "6 records forwarded\n" || forwarded() != 6 {
		t.Errorf("printed %q, %d rows", out, forwarded())
	}
}

// TestTracking checks that a run whose configuration names a tracker forwards all its own
// records. The run does not begin if the tracker cannot work.
func TestTracking(t *testing.T) {
	args, forwarded := trackable(t, t.TempDir(), "tracking.wandb=agents")
	without := append([]string{"train"}, append(args, "--set", "tracking.python=/bin/false")...)
	if _, errs, status := run(t, "", without...); status != exitFailed || !strings.Contains(errs, "does not have the package wandb") {
		t.Errorf("without the package: status %d: %s", status, errs)
	}
	trainToEnd(t, args...)
	if forwarded() != 6 {
		t.Errorf("%d rows, want 6", forwarded())
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
