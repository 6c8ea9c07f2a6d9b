package assemble

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// The processes on a machine share its threads and memory. The ranks on all machines share a step's rollouts.
func TestMachinesShare(t *testing.T) {
	cfg, err := config.Load("../../../examples/quickstart/team.yaml", []string{"agents.planner.devices=[cpu, cpu]", "run.threads=12", "agents.researcher.devices=[cpu, cpu, cpu, cpu]",
		"agents.planner.machines={count: 3, address: 'h:9', key_file: k}", "task.queries_per_step=6", "grpo.rollouts=2"})
	if err != nil {
		t.Fatal(err)
	}
	a := cfg.Agent("planner")
	want := AgentOptions{Config: cfg, Agent: a.Name, Process: &Process{Agents: cfg.AgentNames()}}
	var sharing []int
	for rank := range a.Ranks() {
		sharing = append(sharing, want.sharingThreads(a, rank))
	}
	if !slices.Equal(sharing, []int{6, 6, 2, 2, 2, 2}) {
		t.Errorf("processes on the machine of each rank: %v", sharing)
	}
	if n := cfg.Slots(a); n != 2 {
		t.Errorf("each of six devices samples %d of 12 rollouts", n)
	}
	first, err := MemoryNeeds(cfg, []string{"planner"}, nil)
	last, err2 := MachineNeeds(cfg, "planner", 2)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	var ranks []int
	for _, n := range append(first, last...) {
		ranks = append(ranks, n.Rank)
	}
	if !slices.Equal(ranks, []int{0, 1, 4, 5}) || fmt.Sprint(first[1].Parts) != fmt.Sprint(last[0].Parts) {
		t.Errorf("ranks %v on the first and the last machine; their followers need %v and %v", ranks, first[1].Parts, last[0].Parts)
	}
	own := configOf(want, a, "cpu")
	if follower, err := config.Parse("/follower.yaml", own, nil); err != nil || len(follower.Agent("planner").Ranks()) != 1 || follower.Slots(follower.Agent("planner")) != 2 {
		t.Errorf("%v: configuration of a follower:\n%s", err, own)
	}
}
