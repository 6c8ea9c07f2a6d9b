package worker

import (
	"context"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Evaluate plays rollouts of held-out queries, without training on them. At the main agent's worker it returns the
// answers to each question, or nil if some have no score.
func (w *Worker) Evaluate(ctx context.Context, version int64) (answers []score.Answers, err error) {
	p := store.EvalPhase(version)
	clock := newStopwatch()
	exp, err := w.rollouts.play(ctx, p)
	if err != nil {
		return nil, err
	}
	outcomes, err := w.member.Phases.Outcomes(ctx, p, plannedRollouts(exp.plan))
	if err != nil {
		return nil, err
	}
	clock.lap("rollout")
	queries, err := w.rollouts.queries.lookUp(exp.plan)
	if err != nil {
		return nil, err
	}
	if err := checkPlanned(outcomes, queries, exp.plan.Rollouts); err != nil {
		return nil, err
	}
	sets := bySet(queries, outcomes)
	own := sets[""]
	record := w.reports.evaluation(version, exp, outcomes, own, clock)
	if w.main && record.Unknown == "" {
		all := groupedByQuery(queries, outcomes, exp.plan.Rollouts)
		known := w.reports.scored(version, all, sets)
		record.Scores = score.Summary(known, w.cfg.Run.Seed)
		if len(known) == len(all) {
			for _, q := range all {
				answers = append(answers, score.AnswersTo(q.Query, q.Correct))
			}
		}
	}
	w.archive.RecordEvaluation(version, accuracy(own))
	if err := w.report(ctx, record); err != nil {
		return nil, err
	}
	w.archive.Trajectories.Write(p, exp.lines(w.agent, nil, nil))
	return answers, nil
}

// checkPlanned checks that outcomes, which come from the store, are of planned rollouts.
func checkPlanned(outcomes []store.Outcome, queries []task.Query, samples int) error {
	planned := map[string]bool{}
	for _, q := range queries {
		planned[q.ID] = true
	}
	for _, o := range outcomes {
		if !planned[o.Query] || o.Rollout >= samples {
			return fmt.Errorf("the store has an outcome of rollout %s, which is not in the plan", o.ID())
		}
	}
	return nil
}

// groupedByQuery groups outcomes by query, in the order of the queries.
func groupedByQuery(queries []task.Query, outcomes []store.Outcome, samples int) []score.AnsweredQuery {
	all, at := make([]score.AnsweredQuery, len(queries)), map[string]int{}
	for i, q := range queries {
		all[i], at[q.ID] = score.AnsweredQuery{Query: q, Correct: make([]float64, samples)}, i
	}
	for _, o := range outcomes {
		q := &all[at[o.Query]]
		q.Correct[o.Rollout] = o.Correct
		q.Tokens = append(q.Tokens, o.Tokens)
		for _, n := range o.Calls {
			q.Calls += n
		}
	}
	return all
}

// bySet returns the outcomes of each evaluation set, in order. "" is task.eval, by which versions are compared.
func bySet(queries []task.Query, outcomes []store.Outcome) map[string][]store.Outcome {
	setOf, sets := map[string]string{}, map[string][]store.Outcome{}
	for _, q := range queries {
		setOf[q.ID] = q.Set
	}
	for _, o := range outcomes {
		sets[setOf[o.Query]] = append(sets[setOf[o.Query]], o)
	}
	return sets
}

// accuracy returns the main agent's accuracy in an evaluation; NaN if any rollout has no score.
func accuracy(outcomes []store.Outcome) float64 {
	if unknownAccuracy(outcomes) != "" {
		return math.NaN()
	}
	var correct score.Mean
	for _, o := range outcomes {
		correct.Add(o.Correct)
	}
	return correct.Value()
}

// unknownAccuracy returns the reason why an evaluation has no accuracy, or "" if every rollout has a score.
func unknownAccuracy(outcomes []store.Outcome) string {
	missing, reason := 0, ""
	for _, o := range outcomes {
		if o.Failed != "" {
			missing, reason = missing+1, o.Failed
		}
	}
	if missing == 0 {
		return ""
	}
	return fmt.Sprintf("accuracy unknown: %d of %d rollouts have no score: %s", missing, len(outcomes), reason)
}
