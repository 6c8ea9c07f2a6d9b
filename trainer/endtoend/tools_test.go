package endtoend

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// TestToolsAreCounted checks that an agent's records contain the numbers of its tool calls and of failed calls.
func TestToolsAreCounted(t *testing.T) {
	seen := mustTrain(t, load(t, t.TempDir(), "run.steps=1"), trainer.TrainOptions{})
	for _, r := range []metrics.Record{seen.find(t, "step", 1, "researcher"), seen.find(t, "eval", 1, "researcher")} {
		if calls, failed := r.Counts[metrics.ToolCalls]["search"], r.Counts[metrics.ToolErrors]["search"]; calls == 0 || failed != 0 {
			t.Errorf("%s: %d calls, %d errors", r.Kind, calls, failed)
		}
	}
	if counts := seen.find(t, "step", 1, "planner").Counts; len(counts[metrics.ToolCalls]) > 0 {
		t.Errorf("the planner has no tools, but counts %v", counts)
	}
	if strings.Contains(seen.String(), "search failed") {
		t.Errorf("a warning about a working tool: %s", seen)
	}
}
