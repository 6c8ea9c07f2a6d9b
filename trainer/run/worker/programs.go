package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// programs plays rollouts by a user's programs, which reach the agents through the gateway.
type programs struct {
	*common
	policy  policy.Lifecycle
	queries queries
	gateway *gateway.AgentServer // answers requests of programs; nil: no gateway
	player  gateway.Player       // plays the rollouts instead of the main agent's own conversation; may be nil
}

// openGateway admits requests of programs for this agent while a phase is played, until end is called.
func (pr *programs) openGateway(p store.Phase) (end func()) {
	if pr.gateway == nil {
		return func() {}
	}
	pr.gateway.Begin(p.String(), gateway.Rules{Step: samplingStep(p), Sampling: Sampling(pr.cfg, p), Free: p.Evaluates()})
	return func() { pr.gateway.End(p.String()) }
}

// attempt plays one rollout by a program. It returns the main agent's trajectory, the outcome without a reward, and the
// program's own score, or nil. If the program fails, the rollout does not get the reward 0: it is removed for every agent,
// like a rollout whose answer cannot be verified.
func (pr *programs) attempt(ctx context.Context, p store.Phase, q task.Query, k int) (t trajectory, o store.Outcome, correct *float64, err error) {
	played, conversations, err := pr.play(ctx, p, q, k)
	if err != nil {
		return t, o, nil, fmt.Errorf("rollout %s/%d: %w", q.ID, k, err)
	}
	t = pr.trajectoryOf(q, k, 0, conversations)
	t.task, t.program, t.conversation.Answer = q.Text, played.Stderr, played.Result.Answer
	if played.Result.Format != nil {
		t.conversation.FormatValid = *played.Result.Format
	}
	if played.Failed != nil {
		t.conversation.Finish, t.conversation.FormatValid = agent.FinishProgram, false
	}
	var withoutScore unscoredCalls
	var counts tokenCounts
	counts.add(sizeOf(t.conversation))
	if err := pr.endCalls(ctx, p, &t, played, &withoutScore, &counts); err != nil {
		return t, o, nil, err
	}
	o = store.Outcome{Query: q.ID, Rollout: k, Format: t.conversation.FormatValid, Answer: t.conversation.Answer, Calls: t.conversation.Calls,
		Tokens: counts.total(), Unscored: withoutScore.first()}
	if played.Failed != nil {
		o.Failed = reasonOf(played.Failed)
	}
	return t, o, played.Result.Correct, nil
}

// play lets the program play, and returns its result and the main agent's conversations.
func (pr *programs) play(ctx context.Context, p store.Phase, q task.Query, k int) (gateway.JobOutcome, []gateway.Conversation, error) {
	played, err := pr.player.Play(ctx, gateway.Job{Text: q.Text, Row: q.Columns, Ticket: gateway.Ticket{
		Run: pr.cfg.Run.Name, Round: pr.member.Round.Nonce(), Phase: p.String(), Query: q.ID, Rollout: k}})
	if err != nil {
		return played, nil, err
	}
	for name := range played.Result.Experts {
		if !slices.ContainsFunc(pr.cfg.Subs(), func(a *config.Agent) bool { return a.Name == name }) && played.Failed == nil {
			played.Failed = fmt.Errorf("the program scores calls of %q, which is not a sub-agent", name)
		}
	}
	conversations, err := pr.gateway.Finish(played.Ticket)
	return played, conversations, err
}

// score computes the reward from the program's own score, or from the task's verification if there is none.
func (pr *programs) score(ctx context.Context, q task.Query, t *trajectory, correct *float64, o *store.Outcome) (err error) {
	if correct == nil {
		return pr.queries.scoreAnswer(ctx, q, attemptOf(t.conversation, ""), o)
	}
	o.Correct = *correct
	o.Reward, err = pr.queries.rewards.MainReward(o.Format, &o.Correct)
	if !o.Format { // an answer in an invalid format is worth 0
		o.Correct = 0
	}
	return err
}

// endCalls ends a program's calls at the sub-agents. It adds the number of calls of each sub-agent to t.conversation.Calls, the
// reasons for missing scores to withoutScore, and the tokens to counts.
func (pr *programs) endCalls(ctx context.Context, p store.Phase, t *trajectory, played gateway.JobOutcome,
	withoutScore *unscoredCalls, counts *tokenCounts) error {
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	for _, sub := range pr.cfg.Subs() {
		g.Go(func() error {
			scores := played.Result.Experts[sub.Name]
			v := store.Invocation{Phase: p, Query: t.conversation.Query, Rollout: t.conversation.Rollout, Agent: sub.Name, Index: played.Ticket.Attempt,
				End: &store.End{Scores: scores.Scores, ByID: scores.ByID}}
			r, err := pr.member.Invocations.Call(gctx, v)
			withoutScore.add(v, r.Failed)
			mu.Lock()
			defer mu.Unlock()
			if r.Calls > 0 {
				t.conversation.Calls[sub.Name] = r.Calls
				counts.add(r.Tokens)
			}
			return err
		})
	}
	return g.Wait()
}

// end ends a program's rollout for this sub-agent: its conversations become trajectories, which this worker keeps.
func (pr *programs) end(ctx context.Context, c *collector, q task.Query, v store.Invocation) error {
	conversations, err := pr.gateway.Finish(gateway.Ticket{Phase: c.phase.String(), Query: v.Query, Rollout: v.Rollout, Attempt: v.Index})
	if err != nil {
		return err
	}
	r := store.Result{Calls: len(conversations)}
	var counts tokenCounts
	for i, s := range conversations {
		t := pr.trajectoryOf(q, v.Rollout, i, []gateway.Conversation{s})
		counts.add(sizeOf(t.conversation))
		t.unjudged = v.End.Scores == nil && v.End.ByID == nil && pr.queries.unjudged(c.phase, q)
		score, err := pr.expertScore(ctx, q, &t, s, v.End)
		if err != nil && (ctx.Err() != nil || cacheFailed(err)) {
			return err
		}
		if err != nil { // not kept, so the rollout is removed for every agent
			r.Failed = reasonOf(err)
			c.exp.unscored.add(v, r.Failed)
			continue
		}
		t.expert = score
		c.add(&t)
	}
	r.Tokens = counts.total()
	return pr.member.Invocations.Complete(ctx, v, r)
}

// expertScore returns a call's expert score: the program's own score, or the task's. Calls in an invalid format and
// unjudged calls have none.
func (pr *programs) expertScore(ctx context.Context, q task.Query, t *trajectory, s gateway.Conversation, end *store.End) (*float64, error) {
	if !t.conversation.FormatValid || t.unjudged {
		return nil, nil
	}
	if end.Scores != nil {
		if s.Arrival >= len(end.Scores) {
			return nil, fmt.Errorf("the program scored %d calls of %s but made more", len(end.Scores), pr.name)
		}
		return &end.Scores[s.Arrival], nil
	}
	for _, id := range s.Replies {
		if score, ok := end.ByID[id]; ok {
			return &score, nil
		}
	}
	if end.ByID != nil {
		return nil, fmt.Errorf("the program scored calls of %s, but not the one with the replies %v", pr.name, s.Replies)
	}
	score, err := pr.queries.expertScore(ctx, q, attemptOf(t.conversation, s.Task))
	return &score, err
}

// trajectoryOf returns the trajectory of a program's invocation. The main agent's conversations are one invocation.
func (pr *programs) trajectoryOf(q task.Query, k, i int, conversations []gateway.Conversation) trajectory {
	empty := agent.NewRow(policy.Key{Query: q.ID, Rollout: k, Agent: pr.name, Invocation: i}, pr.main)
	t := trajectory{task: q.Text}
	t.conversation = agent.Trajectory{Row: empty, FormatValid: true, Finish: agent.FinishAnswer, Calls: map[string]int{}}
	var rows []agent.Row
	for _, s := range conversations {
		rows = append(rows, s.Rows...)
		t.conversation.FormatValid = t.conversation.FormatValid && s.Valid
		t.conversation.Malformed += s.Malformed
		t.conversation.Answer, t.task = s.Answer, s.Task
	}
	oldest := pr.policy.Version()
	for n := range rows {
		row := &rows[n]
		row.Version = min(row.Version, pr.policy.Version())
		oldest = min(oldest, row.Version)
		row.ID = agent.RowID(empty.ID, n)
		row.Query, row.Rollout, row.Agent, row.Invocation = q.ID, k, pr.name, i
	}
	if len(rows) > 0 { // otherwise the program never sent a request
		t.conversation.Row, t.conversation.More = rows[0], rows[1:]
	}
	t.conversation.Version = oldest
	return t
}
