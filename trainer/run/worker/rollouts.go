package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// rollouts plays the conversations of this agent in training and evaluation.
type rollouts struct {
	*common
	player     *play.Player
	policy     policy.Lifecycle
	queries    queries
	normaliser normaliser
	programs   programs
	stops      *stops
	lost       func() error // reason why the agent's further ranks are gone; nil while they run
}

// step plays the rollouts of a training step and publishes the trajectories that this worker holds. A trajectory that is
// older than the run allows is dropped, so its rollout is removed for every agent.
func (ro *rollouts) step(ctx context.Context, n int64) (*experience, error) {
	exp, err := ro.play(ctx, store.TrainPhase(n))
	if err != nil {
		return nil, err
	}
	if err := ro.publishTrajectories(ctx, n, exp); err != nil {
		return nil, err
	}
	exp.clock.lap("rollout") // it may wait until earlier steps are trained
	return exp, nil
}

// publishTrajectories drops trajectories that are too old for training in step n, and publishes the ids of the others.
func (ro *rollouts) publishTrajectories(ctx context.Context, n int64, exp *experience) error {
	ids := make([]string, 0, len(exp.trajectories))
	for id, t := range exp.trajectories {
		if n-t.conversation.Version > ro.cfg.GRPO.MaxLag {
			delete(exp.trajectories, id)
			exp.stale++
			continue
		}
		ids = append(ids, id)
	}
	return ro.member.Phases.PublishTrajectories(ctx, store.TrainPhase(n), ids)
}

// play plays the rollouts of a training step or an evaluation. The main agent leads them, and a sub-agent answers
// calls.
func (ro *rollouts) play(ctx context.Context, p store.Phase) (exp *experience, err error) {
	defer func() {
		if err == nil {
			err = ro.lost() // a program may have treated the loss of the agent's further ranks as a failed turn
		}
	}()
	if !ro.main {
		return ro.answerAsSub(ctx, p)
	}
	stop, err := ro.stops.requested(ctx)
	if err != nil {
		return nil, err
	}
	if stop {
		if err := ro.member.Round.AskStop(ctx); err != nil { // a successor of this worker must also see the stop
			return nil, err
		}
		var conflict *store.ConflictError
		// A conflict means that an earlier worker of this agent has begun the phase: play it, and stop at the next phase.
		if err := ro.member.Phases.Begin(ctx, p, store.Plan{Rollouts: 1}); !errors.As(err, &conflict) {
			return nil, cmp.Or(err, errStopping)
		}
	}
	drawn, count := ro.queries.forPhase(p)
	return ro.playAsMain(ctx, p, drawn, count)
}

// playAsMain plays every rollout of a phase as the main agent and publishes its outcome.
func (ro *rollouts) playAsMain(ctx context.Context, p store.Phase, drawn []task.Query, count int) (*experience, error) {
	plan := store.Plan{Rollouts: count}
	for _, q := range drawn {
		plan.Queries = append(plan.Queries, q.ID)
	}
	if err := ro.member.Phases.Begin(ctx, p, plan); err != nil {
		return nil, err
	}
	defer ro.programs.openGateway(p)()
	c := ro.collect(p, plan)
	remains, err := ro.playAll(ctx, p, plan, drawn, func(ctx context.Context, q task.Query, k int) (store.Outcome, error) {
		return ro.attempt(ctx, c, q, k)
	})
	if err != nil {
		return nil, err
	}
	if ro.resamples(p) {
		c.exp.plan = remains
		if err := ro.member.Phases.PublishFinalPlan(ctx, p, remains); err != nil {
			return nil, err
		}
	}
	return c.exp, ro.member.Phases.End(ctx, p)
}

// attempt plays one rollout: the main agent's conversation, the answer's verification, the outcome.
func (ro *rollouts) attempt(ctx context.Context, c *collector, q task.Query, k int) (o store.Outcome, err error) {
	if ro.programs.player != nil {
		t, o, correct, err := ro.programs.attempt(ctx, c.phase, q, k)
		if err != nil {
			return o, err
		}
		return ro.conclude(ctx, c, &t, o, func(o *store.Outcome) error { return ro.programs.score(ctx, q, &t, correct, o) })
	}
	var withoutScore unscoredCalls
	var counts tokenCounts
	conversation := play.Conversation{Query: q, Rollout: k, Text: q.Text, Delegate: func(ctx context.Context, d agent.Delegation) (string, error) {
		v := store.Invocation{Phase: c.phase, Query: q.ID, Rollout: k, Agent: d.Agent, Index: d.Index, Repeat: d.Repeat, Task: d.Task}
		r, err := ro.member.Invocations.Call(ctx, v) // another worker answers, possibly on another server
		withoutScore.add(v, r.Failed)
		counts.add(r.Tokens)
		if err == nil && r.Failed != "" && r.Text == "" {
			err = &agent.UnansweredError{Agent: d.Agent, Err: errors.New(r.Failed)}
		}
		return r.Text, err
	}}
	t, err := ro.converse(ctx, c.phase, conversation)
	failed := unanswered(ctx, err)
	if err != nil && failed == nil {
		return o, fmt.Errorf("rollout %s/%d: %w", q.ID, k, err)
	}
	var replayed callRemovals
	if failed == nil && withoutScore.first() == "" {
		if replayed, err = ro.removeCalls(ctx, c.phase, conversation, &t); err != nil {
			return o, fmt.Errorf("rollout %s/%d: %w", q.ID, k, err)
		}
	}
	counts.add(sizeOf(t) + replayed.tokens)
	o = store.Outcome{Query: q.ID, Rollout: k, Format: t.FormatValid, Answer: t.Answer, Calls: t.Calls, Tokens: counts.total(), Unscored: withoutScore.first()}
	if failed != nil {
		o.Failed = reasonOf(failed)
		return o, ro.member.Phases.PublishOutcome(ctx, c.phase, o)
	}
	return ro.conclude(ctx, c, &trajectory{conversation: t, task: q.Text, removalTokens: replayed.tokens}, o, func(o *store.Outcome) error {
		if err := ro.queries.scoreAnswer(ctx, q, attemptOf(t, ""), o); err != nil {
			return err
		}
		return ro.queries.scoreWithoutCalls(ctx, q, replayed, o)
	})
}

// conclude scores a rollout that has not failed, publishes its outcome and keeps the main agent's trajectory. A rollout
// that cannot be scored is removed for every agent.
func (ro *rollouts) conclude(ctx context.Context, c *collector, t *trajectory, o store.Outcome, assess func(*store.Outcome) error) (store.Outcome, error) {
	if o.Failed == "" {
		if err := assess(&o); err != nil {
			if ctx.Err() != nil || cacheFailed(err) {
				return o, err
			}
			o.Failed, o.Correct, o.Reward = reasonOf(err), 0, 0
		}
	}
	if err := ro.member.Phases.PublishOutcome(ctx, c.phase, o); err != nil {
		return o, err
	}
	c.add(t)
	return o, nil
}

// cacheFailed reports whether an error comes from the cache of recorded answers: an answer is missing or damaged, or could
// not be written.
func cacheFailed(err error) bool {
	var failed *recorded.Error
	return errors.As(err, &failed)
}

// unanswered returns the error of a conversation that a model's server did not finish. The server may belong to this agent
// or to an agent that it called. unanswered returns nil for other errors, and if ctx has ended.
func unanswered(ctx context.Context, err error) *agent.UnansweredError {
	var failed *agent.UnansweredError
	if ctx.Err() != nil || !errors.As(err, &failed) {
		return nil
	}
	return failed
}

// answerAsSub answers the calls of this sub-agent until the main agent ends the phase.
func (ro *rollouts) answerAsSub(ctx context.Context, p store.Phase) (*experience, error) {
	plan, err := ro.member.Phases.Plan(ctx, p)
	if err != nil {
		return nil, err
	}
	if len(plan.Queries) == 0 {
		return nil, errStopping
	}
	defer ro.programs.openGateway(p)()
	c := ro.collect(p, plan)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	most := ro.cfg.ConversationsAtOnce(ro.agent)
	g.SetLimit(most)
	var answering atomic.Int64
	for {
		vs, err := ro.member.Invocations.Claim(gctx, p, max(most-int(answering.Load()), 1))
		if errors.Is(err, store.ErrPhaseEnded) {
			if err := g.Wait(); err != nil || !ro.resamples(p) {
				return c.exp, err
			}
			c.exp.plan, err = ro.member.Phases.FinalPlan(ctx, p)
			return c.exp, err
		}
		if err != nil {
			cancel() // the callers of the open conversations are gone
			_ = g.Wait()
			return nil, err
		}
		for _, v := range vs {
			answering.Add(1)
			g.Go(func() error {
				defer answering.Add(-1)
				return ro.answer(gctx, c, v)
			})
		}
	}
}

// answer handles one invocation: this agent's conversation, its expert score, and the text for the caller. This worker
// keeps the trajectory.
func (ro *rollouts) answer(ctx context.Context, c *collector, v store.Invocation) error {
	fail := func(r store.Result, err error) error { // no trajectory is kept, so the rollout is removed for every agent
		r.Failed = reasonOf(err)
		c.exp.unscored.add(v, r.Failed)
		return ro.member.Invocations.Complete(ctx, v, r)
	}
	q, err := ro.player.Task.Lookup(v.Query)
	if err != nil {
		return fail(store.Result{}, err)
	}
	if v.End != nil {
		return ro.programs.end(ctx, c, q, v)
	}
	t, err := ro.converse(ctx, c.phase, play.Conversation{Query: q, Rollout: v.Rollout, Invocation: v.Index, Repeat: v.Repeat, Text: v.Task})
	if failed := unanswered(ctx, err); failed != nil {
		return fail(store.Result{}, failed.Err)
	}
	if err != nil {
		return fmt.Errorf("invocation %s: %w", v.ID(), err)
	}
	kept := &trajectory{conversation: t, task: v.Task, unjudged: ro.queries.unjudged(c.phase, q)}
	r := store.Result{Text: AnswerText(t), Tokens: sizeOf(t)}
	if t.FormatValid && !kept.unjudged {
		expert, err := ro.queries.expertScore(ctx, q, attemptOf(t, v.Task))
		if err != nil && (ctx.Err() != nil || cacheFailed(err)) {
			return err
		}
		if err != nil {
			return fail(r, err)
		}
		kept.expert = &expert
	}
	c.add(kept)
	return ro.member.Invocations.Complete(ctx, v, r)
}

// tokenCounts counts the tokens that each conversation of a rollout read and wrote.
type tokenCounts struct {
	mu     sync.Mutex
	tokens []int
}

func (s *tokenCounts) add(tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = append(s.tokens, tokens)
}

func (s *tokenCounts) total() int { return score.TotalTokens(s.tokens) }

// sizeOf returns the number of tokens of a conversation, or 0 if it is unknown.
func sizeOf(t agent.Trajectory) int {
	tokens, _, _ := t.Size()
	return tokens
}

// AnswerText returns the text for the caller. An answer is used even if the format is invalid because of an earlier wrong
// call.
func AnswerText(t agent.Trajectory) string {
	switch {
	case t.Finish != agent.FinishAnswer:
		return fmt.Sprintf("(no answer: %s)", t.Finish)
	case t.Answer == "":
		return "(no answer: it is empty)"
	}
	return t.Answer
}

// attemptOf returns a conversation in the form that a verifier reads. subtask is the request to a sub-agent.
func attemptOf(t agent.Trajectory, subtask string) task.Attempt {
	a := task.Attempt{Agent: t.Agent, Rollout: t.Rollout, Invocation: t.Invocation, Subtask: subtask, Answer: t.Answer}
	for _, turn := range t.AllTurns() {
		a.Conversation = append(a.Conversation, task.Message{Role: turn.Role, Text: turn.Text})
	}
	return a
}

// converse holds one conversation of this worker's agent.
func (ro *rollouts) converse(ctx context.Context, p store.Phase, c play.Conversation) (agent.Trajectory, error) {
	c.Step, c.Sampling = samplingStep(p), Sampling(ro.cfg, p)
	t, err := ro.player.Play(ctx, c)
	// If the prompt is too long or the model is hosted, our weights sampled nothing, so the trajectory is not stale.
	if err == nil && t.SampledTokens() == 0 {
		t.Version = ro.policy.Version()
	}
	return t, err
}

// collector collects the trajectories of a phase from its goroutines.
type collector struct {
	*common
	phase store.Phase
	mu    sync.Mutex
	exp   *experience
}

func (ro *rollouts) collect(p store.Phase, plan store.Plan) *collector {
	return &collector{common: ro.common, phase: p, exp: &experience{plan: plan, trajectories: map[string]*trajectory{}, clock: newStopwatch()}}
}

// add keeps a trajectory. Repeated invocations have equal trajectories; add keeps the first.
func (c *collector) add(t *trajectory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, again := c.exp.trajectories[t.conversation.ID]; again {
		return
	}
	if c.phase.Evaluates() { // evaluations are not trained on
		for _, row := range t.conversation.Rows() {
			row.Routes = nil
		}
	}
	c.exp.trajectories[t.conversation.ID] = t
	p := metrics.Progress{Agent: c.name, Activity: metrics.RollOut, Version: c.phase.Step, Done: len(c.exp.trajectories)}
	if c.phase.Evaluates() {
		p.Activity = metrics.Evaluate
	}
	if c.main {
		p.Total = plannedRollouts(c.exp.plan)
	}
	c.observer.Progress(p)
}

// idOf returns the id of an agent's trajectory in rollout k of a query. i is the invocation; it is 0 for the main agent.
func idOf(a *config.Agent, query string, k, i int) string {
	return agent.TrajectoryID(policy.Key{Query: query, Rollout: k, Agent: a.Name, Invocation: i}, a.IsMain())
}

// plannedRollouts returns the number of rollouts of a phase, without the rollouts of replaced queries.
func plannedRollouts(p store.Plan) int { return len(p.Queries) * p.Rollouts }
