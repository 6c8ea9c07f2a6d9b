package worker

import (
	"fmt"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestAnswerText: the text returned to the delegating agent is the answer, also after a
// malformed call, or the reason why there is no answer.
func TestAnswerText(t *testing.T) {
	for want, said := range map[string]agent.Trajectory{
		"42":                       {Finish: agent.FinishAnswer, FormatValid: true, Answer: "42"},
		"43":                       {Finish: agent.FinishAnswer, Malformed: 1, Answer: "43"},
		"(no answer: it is empty)": {Finish: agent.FinishAnswer},
		"(no answer: turns)":       {Finish: agent.FinishTurns},
	} {
		if got := AnswerText(said); got != want {
			t.Errorf("%+v: got %q, want %q", said, got, want)
		}
	}
}

// stagedTask is a task whose query ids are the stage and the query's number in it.
type stagedTask struct{ task.Task }

func (stagedTask) Train(i int64) task.Query { return task.Query{ID: fmt.Sprintf("all %d", i)} }

func (stagedTask) TrainStage(stage int, i int64) task.Query {
	return task.Query{ID: fmt.Sprintf("%d %d", stage, i)}
}

// TestCurriculum: each stage of a curriculum lasts its number of steps and begins with the
// first query of its own order. After the last stage, queries of the whole task follow.
func TestCurriculum(t *testing.T) {
	cfg := load(t, t.TempDir(), "task.queries_per_step=2")
	cfg.Task.Curriculum = []config.Stage{{Name: "easy", Steps: 2}, {Name: "hard", Steps: 1}}
	for step, want := range []string{"0 0,0 1", "0 2,0 3", "1 0,1 1", "all 6,all 7", "all 8,all 9"} {
		chosen, _ := queries{cfg: cfg, task: stagedTask{}}.forPhase(store.TrainPhase(int64(step)))
		if got := chosen[0].ID + "," + chosen[1].ID; got != want {
			t.Errorf("step %d: got queries %s, want %s", step, got, want)
		}
	}
}

// TestQueriesOfAResumedRun: a run that continues with another task.queries_per_step draws the next queries of the order, or of the order
// of the stage in which it stopped. A checkpoint holds their number, so the run can change it again.
func TestQueriesOfAResumedRun(t *testing.T) {
	first := func(perStep int, curriculum []config.Stage, from trainingPosition, step int64) string {
		cfg := load(t, t.TempDir(), fmt.Sprintf("task.queries_per_step=%d", perStep))
		cfg.Task.Curriculum = curriculum
		chosen, _ := queries{cfg: cfg, task: stagedTask{}, from: from}.forPhase(store.TrainPhase(step))
		return chosen[0].ID
	}
	stages := []config.Stage{{Name: "easy", Steps: 4}, {Name: "hard", Steps: 2}}
	for _, c := range []struct {
		perStep    int
		curriculum []config.Stage
		from       trainingPosition
		step       int64
		want       string
	}{
		{8, nil, trainingPosition{100, 1600}, 100, "all 1600"},
		{8, nil, trainingPosition{100, 1600}, 102, "all 1616"},
		{8, nil, trainingPosition{100, 1600}, 99, "all 792"}, // no resumed run asks for it
		{8, nil, trainingPosition{100, 0}, 101, "all 808"},   // a checkpoint without the number
		{2, stages, trainingPosition{1, 10}, 3, "0 14"},
		{2, stages, trainingPosition{1, 10}, 5, "1 2"},
		{2, stages, trainingPosition{4, 0}, 4, "1 0"},
		{2, stages, trainingPosition{1, 10}, 6, "all 12"},
	} {
		if got := first(c.perStep, c.curriculum, c.from, c.step); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	cfg := load(t, t.TempDir(), "task.queries_per_step=3")
	again := queries{cfg: cfg, task: stagedTask{}, from: trainingPositionOf(&archive.Manifest{Step: 7, Drawn: queries{cfg: cfg, from: trainingPosition{5, 100}}.drawn(7)})}
	if got := again.drawn(9); got != 112 {
		t.Errorf("%d queries before step 9, want 112", got)
	}
}

// TestStaleTrajectories: a trajectory older than grpo.max_lag allows is dropped before its id is published.
func TestStaleTrajectories(t *testing.T) {
	cfg := load(t, t.TempDir(), "grpo.max_lag=1", "grpo.old=recomputed", "grpo.tis_cap=2")
	m := onlyMember(t, store.Options{Run: "test"})
	ro := &rollouts{common: &common{cfg: cfg, agent: cfg.Agent("researcher"), name: "researcher", member: m}}
	exp := &experience{trajectories: map[string]*trajectory{
		"old": {conversation: agent.Trajectory{Row: agent.Row{ID: "old", Version: 3}}}, "new": {conversation: agent.Trajectory{Row: agent.Row{ID: "new", Version: 4}}},
	}}
	if err := ro.publishTrajectories(t.Context(), 5, exp); err != nil {
		t.Fatal(err)
	}
	published, err := m.Phases.Trajectories(t.Context(), store.TrainPhase(5))
	if err != nil {
		t.Fatal(err)
	}
	if ids := published["researcher"]; len(ids) != 1 || ids[0] != "new" || exp.stale != 1 || exp.trajectories["old"] != nil {
		t.Errorf("published %v, want [new]; %d stale, want 1; kept %v", ids, exp.stale, exp.trajectories)
	}
}
