package trainer

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
)

// TestMemoryRemedy checks that an error of a follower without memory gets the keys to lower. For an agent that does not learn they are
// those of sampling.
func TestMemoryRemedy(t *testing.T) {
	cfg, err := config.Load("../examples/quickstart/team.yaml", []string{"cold_start.demonstrations=none", "agents.researcher.train=false"})
	if err != nil {
		t.Fatal(err)
	}
	full := withMemoryRemedy(cfg, nil, "planner", &launch.FailedError{Follower: "rank 1 of planner on cpu", Reason: "no memory", OutOfMemory: true})
	if !strings.Contains(full.Error(), "rank 1 of planner on cpu: no memory: there is not enough memory") || !strings.Contains(full.Error(), "lower agents.planner.engine.") {
		t.Error(full)
	}
	frozen := withMemoryRemedy(cfg, nil, "researcher", &torch.Error{Message: "CUDA out of memory"})
	if !strings.Contains(frozen.Error(), "lower agents.researcher.engine.") || strings.Contains(frozen.Error(), "micro_batch") {
		t.Errorf("for an agent that does not learn: %v", frozen)
	}
}
