package worker

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Evaluate plays rollouts of held-out queries, without training on them. At the main agent's worker it returns the
// questions with their answers, or nil if some have no score.
func (w *Worker) Evaluate(ctx context.Context, version int64) (answers []score.Question, err error) {
	p := store.Eval(version)
	clock := newStopwatch()
	exp, err := w.rollouts.play(ctx, p)
	if err != nil {
		return nil, err
	}
	outcomes, err := w.member.Outcomes(ctx, p, total(exp.plan))
	if err != nil {
		return nil, err
	}
	clock.lap("rollout")
	questions, err := w.rollouts.queries().lookUp(exp.plan)
	if err != nil {
		return nil, err
	}
	own := ofOwnSet(questions, outcomes)
	record := w.reports.evaluation(version, exp, outcomes, own, clock)
	if w.main && record.Unknown == "" {
		answers = groupedByQuestion(questions, outcomes, exp.plan.Rollouts)
		record.Scores = score.Summary(answers, w.cfg.Run.Seed)
	}
	w.archive.RecordEvaluation(version, accuracy(own))
	if err := w.report(ctx, record); err != nil {
		return nil, err
	}
	w.archive.WriteTrajectories(p, w.lines(exp, nil, nil))
	return answers, nil
}
