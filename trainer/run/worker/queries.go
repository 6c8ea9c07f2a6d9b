package worker

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// queries chooses the queries of a phase, verifies the answers, and computes their rewards.
type queries struct {
	cfg     *config.Config
	task    task.Task
	from    trainingPosition
	rewards mgrpo.RewardWeights
}

// trainingPosition is the place in the training order at which a resumed run continues. The steps before it may have drawn other
// numbers of queries than task.queries_per_step is now.
type trainingPosition struct {
	step  int64
	drawn int64 // number of queries already taken from this stage; 0: derive it from task.queries_per_step
}

func trainingPositionOf(from *archive.Manifest) trainingPosition {
	if from == nil {
		return trainingPosition{}
	}
	return trainingPosition{from.Step, from.Drawn}
}

// forPhase returns the queries of a phase and the number of rollouts of each. They are equal in every worker of a
// run, because they depend only on the configuration, the phase and the checkpoint at which the run was resumed.
func (qs queries) forPhase(p store.Phase) (drawn []task.Query, count int) {
	if p.Evaluates() {
		return task.HeldOut(qs.task, qs.cfg.Eval.Queries), qs.cfg.Eval.Samples
	}
	for i := range int64(qs.cfg.Task.QueriesPerStep) {
		drawn = append(drawn, qs.trainQuery(p.Step, qs.drawn(p.Step)+i))
	}
	return drawn, qs.cfg.GRPO.Rollouts
}

// stage returns the stage of the curriculum to which step n belongs, and its first step. The stage is -1 if step n draws from
// the whole task.
func (qs queries) stage(n int64) (stage int, begun int64) {
	for stage, s := range qs.cfg.Task.Curriculum {
		if n < begun+s.Steps {
			return stage, begun
		}
		begun += s.Steps
	}
	return -1, 0
}

// drawn returns the number of queries that the steps before step n drew from the order of its stage.
func (qs queries) drawn(n int64) int64 {
	stage, begun := qs.stage(n)
	if of, _ := qs.stage(qs.from.step); of == stage && n >= qs.from.step && qs.from.drawn > 0 {
		return qs.from.drawn + (n-qs.from.step)*int64(qs.cfg.Task.QueriesPerStep)
	}
	return (n - begun) * int64(qs.cfg.Task.QueriesPerStep)
}

// trainQuery returns query i of the order of step n's stage. A stage of the curriculum has its own order, which begins with the
// stage.
func (qs queries) trainQuery(n, i int64) task.Query {
	if stage, _ := qs.stage(n); stage >= 0 {
		return qs.task.(task.WithCurriculum).TrainStage(stage, i) // jsonl is the only kind that may have stages
	}
	return qs.task.Train(i)
}

// lookUp returns the queries of a plan.
func (qs queries) lookUp(plan store.Plan) ([]task.Query, error) {
	questions := make([]task.Query, len(plan.Queries))
	for i, id := range plan.Queries {
		var err error
		if questions[i], err = qs.task.Lookup(id); err != nil {
			return nil, err
		}
	}
	return questions, nil
}

// firstReplacement is the place of the first replacement query in the training order, far beyond the queries of steps.
// Like a step's own queries, replacements depend only on the seed and their number.
const firstReplacement = 1 << 32

// replacement returns replacement query r of training step n, r < grpo.resample.
func (qs queries) replacement(n int64, r int) task.Query {
	_, begun := qs.stage(n)
	return qs.trainQuery(n, firstReplacement+(n-begun)*int64(qs.cfg.GRPO.Resample)+int64(r))
}

// samplingStep returns the step in the key of a phase's random numbers. All evaluations use 0, so that versions are
// compared with the same numbers, and `mgrpo eval` repeats a run's figures. Held-out queries have different ids, so their
// random numbers differ from the numbers of training step 0.
func samplingStep(p store.Phase) int64 {
	if p.Evaluates() {
		return 0
	}
	return p.Step
}

// Sampling returns the temperature and the truncation of a phase.
func Sampling(cfg *config.Config, p store.Phase) policy.Sampling {
	if p.Evaluates() {
		e := cfg.Eval
		return policy.Sampling{Temperature: e.Temperature, TopK: e.TopK, TopP: e.TopP, MinP: e.MinP}
	}
	return policy.Sampling{Temperature: cfg.GRPO.Temperature}
}
