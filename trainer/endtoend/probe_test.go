package endtoend

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
)

// hookedTask is the research task, except that it calls during before each call of its tool.
type hookedTask struct {
	*research.Task
	during func(ctx context.Context)
}

func (w hookedTask) Tools(q task.Query, role task.AgentRole) []tool.Tool {
	tools := w.Task.Tools(q, role)
	for i, t := range tools {
		tools[i] = watchedTool{t, w.during}
	}
	return tools
}

type watchedTool struct {
	tool.Tool
	during func(ctx context.Context)
}

func (w watchedTool) Call(ctx context.Context, args json.RawMessage) (string, error) {
	w.during(ctx)
	return w.Tool.Call(ctx, args)
}

// TestRolloutsInFlight checks that an agent with one conversation at a time reports one rollout in flight while it calls a tool.
func TestRolloutsInFlight(t *testing.T) {
	cfg := load(t, t.TempDir(), "run.arm=single", "run.steps=1", "eval.before=false", "eval.every=0", "eval.queries=1",
		"task.queries_per_step=2", "agents.planner.cold_start.steps=60", "agents.planner.engine.slots=1", "health.address=127.0.0.1:0")
	seen := map[string]int{}
	line := regexp.MustCompile(`(?m)^mgrpo_rollouts_in_flight\{agent="planner"\} (.*)$`)
	var console output
	during := func(ctx context.Context) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, console.address()+health.MetricsPath, nil)
		if err != nil {
			t.Error(err)
			return
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		if m := line.FindSubmatch(page); m != nil {
			seen[string(m[1])]++
		}
	}
	opt := trainer.TrainOptions{Task: hookedTask{openTask(t, cfg).(*research.Task), during}}
	if err := toTheEnd(trainer.TrainAndReport(t.Context(), cfg, opt, &console)); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen["1"] == 0 {
		t.Errorf("numbers of rollouts in flight during calls of a tool, with their counts: %v, want only 1", seen)
	}
}
