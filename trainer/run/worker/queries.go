package worker

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// queries chooses the queries of a phase.
type queries struct {
	cfg  *config.Config
	task task.Task
}

// forPhase returns the queries of a phase and the number of rollouts of each. They depend on the run's seed and the phase only.
func (q queries) forPhase(p store.Phase) (drawn []task.Query, count int) {
	if p.Evaluates() {
		return task.HeldOut(q.task, q.cfg.Eval.Queries), q.cfg.Eval.Samples
	}
	n := int64(q.cfg.Task.QueriesPerStep)
	for i := range n {
		drawn = append(drawn, q.train(p.Step, 0, n, i))
	}
	return drawn, q.cfg.GRPO.Rollouts
}

// train returns query i of step n in the training order, with `per` queries per step, counted from `first`. A stage of the
// curriculum has its own order, which begins with the stage.
func (q queries) train(n, first, per, i int64) task.Query {
	begun := int64(0)
	for stage, s := range q.cfg.Task.Curriculum {
		if n < begun+s.Steps {
			return q.task.(task.WithCurriculum).TrainStage(stage, first+(n-begun)*per+i) // jsonl is the only kind that may have stages
		}
		begun += s.Steps
	}
	return q.task.Train(first + n*per + i)
}

// lookUp returns the queries of a plan.
func (q queries) lookUp(plan store.Plan) ([]task.Query, error) {
	questions := make([]task.Query, len(plan.Queries))
	for i, id := range plan.Queries {
		var err error
		if questions[i], err = q.task.Lookup(id); err != nil {
			return nil, err
		}
	}
	return questions, nil
}

// firstReplacement is the place of the first replacement query in the training order, far beyond the queries of steps.
// Like a step's own queries, replacements depend only on the seed and their number.
const firstReplacement = 1 << 32

// replacement returns replacement query r of training step n, r < grpo.resample.
func (q queries) replacement(n int64, r int) task.Query {
	return q.train(n, firstReplacement, int64(q.cfg.GRPO.Resample), int64(r))
}

// samplingStep returns the step in the key of a phase's random numbers. All evaluations use 0, so that versions are
// compared with the same numbers, and `mgrpo eval` repeats a run's figures. Held-out queries have different ids, so they
// never coincide with training step 0.
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
