package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Status is what the store says of a run. It is read while workers write, so its parts are not of the very
// same moment.
type Status struct {
	Run    string        `json:"run"`
	Round  int64         `json:"round"` // how often the run was begun while nobody was alive
	Nonce  string        `json:"nonce"` // of this round
	Agents []AgentStatus `json:"agents"`
	Phases []PhaseStatus `json:"phases"` // those of which something is still to come, oldest first
	Stop   *StopStatus   `json:"stop,omitempty"`
	Asked  string        `json:"asked,omitempty"` // the agent whose worker was asked to stop the run
}

// AgentStatus is one agent's place in the run.
type AgentStatus struct {
	Agent     string  `json:"agent"`
	Epoch     int64   `json:"epoch"`
	Alive     bool    `json:"alive"`                   // a worker holds the place
	LeaseLeft float64 `json:"lease_left_seconds"`      // until a worker that is silent from now on is taken for dead
	Version   *int64  `json:"version,omitempty"`       // training steps committed; absent: not started in this round
	Lag       int64   `json:"lag"`                     // versions behind the newest of all agents
	Ready     bool    `json:"ready"`                   // its worker has been ready to begin in this round
	Finished  bool    `json:"finished"`                // its worker has nothing left to do
	InHand    []Call  `json:"in_hand,omitempty"`       // invocations its worker is at, oldest first
	InHandAll int64   `json:"in_hand_count,omitempty"` // of them in all; InHand has the oldest
}

// Call is an invocation that a worker is at.
type Call struct {
	Phase    string  `json:"phase"`
	ID       string  `json:"id"`
	Age      float64 `json:"age_seconds"` // since it was submitted
	Delivery int64   `json:"delivery"`    // 1: no worker was lost over it
}

// PhaseStatus is how far a phase has come.
type PhaseStatus struct {
	Phase      string   `json:"phase"`
	Begun      bool     `json:"begun"`             // its plan is there; a checkpoint has none
	Ended      bool     `json:"ended"`             // no answer is awaited any more
	Outcomes   int64    `json:"outcomes"`          // that are there
	Rollouts   int64    `json:"rollouts"`          // of the plan
	Unanswered int64    `json:"unanswered"`        // invocations without an answer
	Lacking    []string `json:"lacking,omitempty"` // agents that have not said what all say once
	Behind     []string `json:"behind,omitempty"`  // agents that have not committed the step
	lacks      report   // what they have not said
	planless   bool     // it is the making of a checkpoint
	step       int64
}

// StopStatus is why the round has ended before its time.
type StopStatus struct {
	Agent  string   `json:"agent"`
	Reason string   `json:"reason"`
	Kind   StopKind `json:"kind"`
}

// EmptyError is a store that holds nothing of a run.
type EmptyError struct{ Run string }

func (e *EmptyError) Error() string {
	return fmt.Sprintf("store: nothing of run %s is there: no worker of it has ever joined, or the store was wiped", e.Run)
}

// What a status reads at most.
const (
	statusPhases = 1000 // phases looked through
	statusShown  = 20   // phases and calls in hand that are told in full
	statusCalls  = 10_000
)

// ReadStatus asks a store about a run, with commands that only read. An *EmptyError says that there is
// nothing. The context should have a deadline.
func ReadStatus(ctx context.Context, o Options) (*Status, error) {
	if err := checkName("a run", o.Run); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if o.URL == "" {
		return nil, errors.New("store: an embedded store is known to its own process only")
	}
	opts, err := clientOptions(o)
	if err != nil {
		return nil, err
	}
	s := &Store{opts: o, rdb: redis.NewUniversalClient(opts)}
	r := &statusReader{s: s, ctx: ctx, out: Status{Run: o.Run}}
	err = r.read()
	if err = errors.Join(err, s.rdb.Close()); err != nil {
		return nil, err
	}
	return &r.out, nil
}

// Ping waits for the store to answer a question about the run.
func (s *Store) Ping(ctx context.Context) error { return s.rdb.Exists(ctx, s.key("meta")).Err() }

// statusReader fills a Status.
type statusReader struct {
	s      *Store
	ctx    context.Context
	names  []string // the run's agents
	phases []Phase
	now    time.Time // the server's clock
	out    Status
}

func (r *statusReader) read() error {
	for _, part := range []func() error{r.run, r.agents, r.calls, r.listPhases, r.progress} {
		if err := part(); err != nil {
			var malformed *MalformedError
			var empty *EmptyError
			if errors.As(err, &malformed) || errors.As(err, &empty) {
				return err
			}
			return fmt.Errorf("store: the status of %s: %w", r.out.Run, r.s.advise(err))
		}
	}
	return nil
}

// ask sends commands at once. A key that is not there is no error.
func (r *statusReader) ask(queue func(redis.Pipeliner)) error {
	p := r.s.rdb.Pipeline()
	queue(p)
	for _, c := range exec(r.ctx, p) {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// run reads what the round has agreed on.
func (r *statusReader) run() error {
	meta, stopKey := r.s.key("meta"), r.s.key("stop")
	var hello, nonce, round, asked *redis.StringCmd
	var stop [3]*redis.StringCmd
	var now *redis.TimeCmd
	err := r.ask(func(p redis.Pipeliner) {
		hello, nonce, round, asked = p.HGet(r.ctx, meta, "hello"), p.HGet(r.ctx, meta, "nonce"), p.HGet(r.ctx, meta, "round"), p.HGet(r.ctx, meta, "asked")
		for i, field := range []string{"agent", "reason", "kind"} {
			stop[i] = p.HGet(r.ctx, stopKey, field)
		}
		now = p.Time(r.ctx)
	})
	if err != nil {
		return err
	}
	if hello.Err() != nil {
		return &EmptyError{r.out.Run}
	}
	g, err := decode[greeting](meta+" hello", hello.Val())
	if err != nil {
		return err
	}
	r.names, r.now = g.Agents, now.Val()
	r.out.Nonce, r.out.Asked = clip(nonce.Val()), clip(asked.Val())
	if r.out.Round, err = r.number(meta+" round", round); err != nil {
		return err
	}
	if stop[0].Err() == nil {
		r.out.Stop = &StopStatus{clip(stop[0].Val()), clip(stop[1].Val()), StopKind(clip(stop[2].Val()))}
	}
	return nil
}

// number is a count that a key holds as text, 0 where it holds none.
func (r *statusReader) number(key string, cmd *redis.StringCmd) (int64, error) {
	if cmd.Err() != nil {
		return 0, nil
	}
	n, err := strconv.ParseInt(cmd.Val(), 10, 64)
	if err != nil || n < 0 {
		return 0, &MalformedError{Key: key, Msg: fmt.Sprintf("%q is not a count", clip(cmd.Val()))}
	}
	return n, nil
}

// agents reads who is where.
func (r *statusReader) agents() error {
	type replies struct {
		lease           *redis.DurationCmd
		epoch, version  *redis.StringCmd
		ready, finished *redis.BoolCmd
	}
	answers := make([]replies, len(r.names))
	err := r.ask(func(p redis.Pipeliner) {
		for i, a := range r.names {
			answers[i] = replies{p.PTTL(r.ctx, r.s.key("lease", a)), p.HGet(r.ctx, r.s.key("epochs"), a), p.HGet(r.ctx, r.s.key("versions"), a),
				p.HExists(r.ctx, r.s.key("met", string(Ready)), a), p.HExists(r.ctx, r.s.key("met", string(Finished)), a)}
		}
	})
	if err != nil {
		return err
	}
	newest := int64(0)
	for i, a := range r.names {
		st := AgentStatus{Agent: a, Ready: answers[i].ready.Val(), Finished: answers[i].finished.Val()}
		if left := answers[i].lease.Val(); left >= 0 { // below 0 there is no lease
			st.Alive, st.LeaseLeft = true, left.Seconds()
		}
		if st.Epoch, err = r.number(r.s.key("epochs")+" "+a, answers[i].epoch); err != nil {
			return err
		}
		if answers[i].version.Err() == nil {
			v, err := r.number(r.s.key("versions")+" "+a, answers[i].version)
			if err != nil {
				return err
			}
			st.Version, newest = &v, max(newest, v)
		}
		r.out.Agents = append(r.out.Agents, st)
	}
	for i := range r.out.Agents {
		if v := r.out.Agents[i].Version; v != nil {
			r.out.Agents[i].Lag = newest - *v
		}
	}
	return nil
}

// calls reads what workers have in hand.
func (r *statusReader) calls() error {
	counts := make([]*redis.IntCmd, len(r.names))
	err := r.ask(func(p redis.Pipeliner) {
		for i, a := range r.names {
			counts[i] = p.HLen(r.ctx, r.s.key("claimed", a))
		}
	})
	if err != nil {
		return err
	}
	for i, a := range r.names {
		st := &r.out.Agents[i]
		if st.InHandAll = counts[i].Val(); st.InHandAll == 0 || st.InHandAll > statusCalls {
			continue
		}
		claims, err := r.s.rdb.HGetAll(r.ctx, r.s.key("claimed", a)).Result()
		if err != nil {
			return err
		}
		if st.InHand, err = r.inHand(a, claims); err != nil {
			return err
		}
	}
	return nil
}

// inHand sorts an agent's claims, "PHASE ID" to the entry of its stream, and keeps the oldest.
func (r *statusReader) inHand(agent string, claims map[string]string) ([]Call, error) {
	var out []Call
	for name, entry := range claims {
		phase, id, ok := strings.Cut(name, " ")
		submitted, _, _ := strings.Cut(entry, "-")
		ms, err := strconv.ParseInt(submitted, 10, 64)
		if !ok || err != nil || len(id) > MaxID+200 || len(phase) > 64 {
			return nil, &MalformedError{Key: r.s.key("claimed", agent), Msg: fmt.Sprintf("%q with %q is not an invocation in hand", clip(name), clip(entry))}
		}
		out = append(out, Call{Phase: phase, ID: id, Age: max(r.now.Sub(time.UnixMilli(ms)).Seconds(), 0)})
	}
	slices.SortFunc(out, func(a, b Call) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.ID, b.ID)) })
	out = out[:min(len(out), statusShown)]
	lost := make([]*redis.StringCmd, len(out))
	err := r.ask(func(p redis.Pipeliner) {
		for i, c := range out {
			lost[i] = p.HGet(r.ctx, r.s.key("lost", c.Phase), c.ID)
		}
	})
	for i := range out {
		if err != nil {
			break
		}
		out[i].Delivery, err = r.number(r.s.key("lost", out[i].Phase)+" "+clip(out[i].ID), lost[i])
		out[i].Delivery++
	}
	return out, err
}

// listPhases finds the phases from the oldest version on that an agent is at; checkpoints, which are
// written behind the steps, from any.
func (r *statusReader) listPhases() error {
	names, err := r.s.rdb.ZRangeByScore(r.ctx, r.s.key("phases"), &redis.ZRangeBy{Min: "-inf", Max: "+inf", Count: statusPhases}).Result()
	if err != nil {
		return err
	}
	oldest := int64(math.MaxInt64)
	for _, a := range r.out.Agents {
		if a.Version != nil {
			oldest = min(oldest, *a.Version)
		}
	}
	for _, name := range names {
		p, err := parsePhase(name)
		if err != nil {
			return &MalformedError{Key: r.s.key("phases"), Msg: err.Error()}
		}
		if p.hasNoPlan() || p.Step >= oldest {
			r.phases = append(r.phases, p)
		}
	}
	return nil
}

// parsePhase is the phase that a name in keys and messages is of.
func parsePhase(name string) (Phase, error) {
	kind, number, _ := strings.Cut(name, "-")
	step, err := strconv.ParseInt(number, 10, 64)
	p := Phase{Kind: kind, Step: step}
	if err != nil || p.check() != nil || p.String() != name {
		return Phase{}, fmt.Errorf("%q is not a phase", clip(name))
	}
	return p, nil
}

// hasNoPlan says whether a phase is the making of a checkpoint, and not a round of rollouts.
func (p Phase) hasNoPlan() bool { return p.Kind == checkpointOf(0).Kind }

// reports are what every agent says of a phase, one after the other. A worker that goes on from a checkpoint has its
// manifest and says nothing of its part.
func (p Phase) reports() []report {
	switch p.Kind {
	case Train(0).Kind:
		return []report{trajectoriesReport}
	case checkpointOf(0).Kind:
		return []report{partReport, manifestReport}
	}
	return nil // nobody is trained on an evaluation's trajectories
}

// progress reads how far the phases have come, and keeps those of which something is still to come.
func (r *statusReader) progress() error {
	type replies struct {
		plan                     *redis.StringCmd
		ended                    *redis.BoolCmd
		outcomes, calls, results *redis.IntCmd
		said                     [][]*redis.BoolCmd // by report and agent
	}
	answers := make([]replies, len(r.phases))
	err := r.ask(func(p redis.Pipeliner) {
		for i, phase := range r.phases {
			name := phase.String()
			if !phase.hasNoPlan() {
				answers[i] = replies{plan: p.HGet(r.ctx, r.s.key("plan", name), "plan"), ended: p.HExists(r.ctx, r.s.key("plan", name), "ended"),
					outcomes: p.HLen(r.ctx, r.s.key("outcome", name)), calls: p.HLen(r.ctx, r.s.key("call", name)), results: p.HLen(r.ctx, r.s.key("result", name))}
			}
			for _, t := range phase.reports() {
				var said []*redis.BoolCmd
				for _, a := range r.names {
					said = append(said, p.HExists(r.ctx, r.s.key(t.kind, name), a))
				}
				answers[i].said = append(answers[i].said, said)
			}
		}
	})
	if err != nil {
		return err
	}
	for i, phase := range r.phases {
		a, st := answers[i], PhaseStatus{Phase: phase.String(), planless: phase.hasNoPlan(), step: phase.Step}
		for j, said := range a.said {
			lacking := r.silent(said)
			if j > 0 && len(st.Lacking) > 0 && len(lacking) == len(r.names) {
				break // the report before comes first
			}
			st.Lacking, st.lacks = lacking, phase.reports()[j]
		}
		if !st.planless && a.plan.Err() == nil {
			plan, err := decode[Plan](r.s.key("plan", phase.String()), a.plan.Val())
			if err != nil {
				return err
			}
			st.Begun, st.Ended = true, a.ended.Val()
			st.Rollouts, st.Outcomes = int64(len(plan.Queries))*int64(plan.Rollouts), a.outcomes.Val()
			st.Unanswered = max(a.calls.Val()-a.results.Val(), 0)
		}
		if phase.Kind == Train(0).Kind {
			st.Behind = r.behind(phase.Step + 1)
		}
		if st.Begun && st.Rollouts == 0 { // the run ends here: it was asked to stop
			continue
		}
		if st.pending() {
			r.out.Phases = append(r.out.Phases, st)
		}
	}
	r.out.Phases = r.out.Phases[max(len(r.out.Phases)-statusShown, 0):]
	return nil
}

// silent lists the agents that have not said something.
func (r *statusReader) silent(said []*redis.BoolCmd) []string {
	var out []string
	for i, there := range said {
		if !there.Val() {
			out = append(out, r.names[i])
		}
	}
	return out
}

// behind lists the agents that have not come to a version.
func (r *statusReader) behind(version int64) []string {
	var out []string
	for _, a := range r.out.Agents {
		if a.Version == nil || *a.Version < version {
			out = append(out, a.Agent)
		}
	}
	return out
}

// pending says whether something of the phase is still to come.
func (p *PhaseStatus) pending() bool {
	if p.planless {
		return len(p.Lacking) > 0
	}
	return !p.Begun || !p.Ended || p.Outcomes < p.Rollouts || len(p.Lacking) > 0 || len(p.Behind) > 0
}

// WaitsFor says in words, most important first, what the run waits for, a line each. There is none when it
// has nothing left to do.
func (s *Status) WaitsFor() []string {
	var out []string
	say := func(agents []string, what string) {
		if len(agents) > 0 {
			out = append(out, strings.Join(agents, ", ")+": "+what)
		}
	}
	where := func(is func(AgentStatus) bool) (agents []string) {
		for _, a := range s.Agents {
			if is(a) {
				agents = append(agents, a.Agent)
			}
		}
		return agents
	}
	if s.Stop != nil {
		say(where(func(a AgentStatus) bool { return a.Alive }), "its worker to leave the round that was stopped")
		return out
	}
	say(where(func(a AgentStatus) bool { return !a.Alive && !a.Finished }), "a worker")
	say(where(func(a AgentStatus) bool { return a.Alive && !a.Ready }), "its worker to be ready to begin")
	for i := range s.Phases {
		s.Phases[i].waits(say, s.main())
	}
	return out
}

// main is the agent that begins and ends phases, as a list.
func (s *Status) main() []string {
	if len(s.Agents) == 0 {
		return nil
	}
	return []string{s.Agents[0].Agent}
}

// waits says what a phase waits for now: of what comes one after the other, the first.
func (p *PhaseStatus) waits(say func(agents []string, what string), main []string) {
	switch {
	case p.planless:
		say(p.Lacking, p.lacks.what+" "+p.Phase)
	case !p.Begun:
		say(main, "the beginning of "+p.Phase)
	case p.Outcomes < p.Rollouts || !p.Ended:
		what := fmt.Sprintf("rollouts of %s, %d of %d are there", p.Phase, p.Outcomes, p.Rollouts)
		if p.Unanswered > 0 {
			what += fmt.Sprintf("; calls without an answer: %d", p.Unanswered)
		}
		say(main, what)
	case len(p.Lacking) > 0:
		say(p.Lacking, p.lacks.what+" "+p.Phase)
	default:
		say(p.Behind, fmt.Sprintf("version %d", p.step+1))
	}
}
