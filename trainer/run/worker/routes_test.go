package worker

import (
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestEvaluationsKeepNoExperts: rollouts of training keep the experts recorded at sampling, and rollouts of evaluations drop them.
func TestEvaluationsKeepNoExperts(t *testing.T) {
	for phase, want := range map[store.Phase]int{store.TrainPhase(1): 2, store.EvalPhase(1): 0} {
		ro := &rollouts{common: &common{observer: &metricstest.Recorder{}}}
		c := ro.collect(phase, store.Plan{})
		recorded := agent.Row{ID: "q/0", Routes: []uint16{1, 2}}
		c.add(&trajectory{conversation: agent.Trajectory{Row: recorded, More: []agent.Row{recorded}}})
		for _, row := range c.exp.trajectories["q/0"].conversation.Rows() {
			if len(row.Routes) != want {
				t.Errorf("%v: a row has %d experts, want %d", phase, len(row.Routes), want)
			}
		}
	}
}
