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

// Status describes a run as read from the store. Workers may write while it is read, so its parts may come from slightly
// different moments.
type Status struct {
	Run    string        `json:"run"`
	Round  int64         `json:"round"` // number of the round
	Nonce  string        `json:"nonce"` // random name of the round
	Agents []AgentStatus `json:"agents"`
	Phases []PhaseStatus `json:"phases"` // phases that are not complete, oldest first
	Stop   *StopStatus   `json:"stop,omitempty"`
	Asked  string        `json:"asked,omitempty"` // agent whose worker was asked to stop the run
}

// AgentStatus is one agent's place in the run.
type AgentStatus struct {
	Agent     string  `json:"agent"`
	Epoch     int64   `json:"epoch"`
	Alive     bool    `json:"alive"`                   // a worker has the place
	LeaseLeft float64 `json:"lease_left_seconds"`      // time until its worker counts as dead if it remains silent
	Silent    float64 `json:"silent_seconds"`          // time since its worker's last sign of life, if the worker has this configuration's lease
	Version   *int64  `json:"version,omitempty"`       // number of committed training steps; absent: not started in this round
	Lag       int64   `json:"lag"`                     // number of versions behind the agent with the newest version
	Ready     bool    `json:"ready"`                   // its worker was ready to begin this round
	Finished  bool    `json:"finished"`                // its worker has finished the run
	InHand    []Call  `json:"in_hand,omitempty"`       // claimed invocations, oldest first
	InHandAll int64   `json:"in_hand_count,omitempty"` // number of claimed invocations; InHand lists the oldest
}

// Missing reports whether a worker that has the place has missed signs of life. There are four of them per lease.
func (a AgentStatus) Missing() bool { return a.Alive && a.Silent > a.LeaseLeft }

// Call is an invocation that a worker has claimed and not answered.
type Call struct {
	Phase    string  `json:"phase"`
	ID       string  `json:"id"`
	Age      float64 `json:"age_seconds"` // since it was submitted
	Delivery int64   `json:"delivery"`    // 1: no worker was lost while it had claimed the invocation
}

// PhaseStatus is the progress of a phase.
type PhaseStatus struct {
	Phase      string   `json:"phase"`
	Begun      bool     `json:"begun"`             // its plan is published; a checkpoint has no plan
	Ended      bool     `json:"ended"`             // all rollouts have ended
	Outcomes   int64    `json:"outcomes"`          // published outcomes
	Rollouts   int64    `json:"rollouts"`          // planned rollouts
	Unanswered int64    `json:"unanswered"`        // invocations without an answer
	Lacking    []string `json:"lacking,omitempty"` // agents that have not published the report that is due next
	Behind     []string `json:"behind,omitempty"`  // agents that have not committed the step
	lacks      report   // the report that they have not published
	planless   bool     // the phase is the saving of a checkpoint
	step       int64
}

// StopStatus describes why the round was ended.
type StopStatus struct {
	Agent  string   `json:"agent"`
	Reason string   `json:"reason"`
	Kind   StopKind `json:"kind"`
}

// EmptyError is returned if the store has no data of a run.
type EmptyError struct{ Run string }

func (e *EmptyError) Error() string {
	return fmt.Sprintf("store: the store has no data of run %s: no worker of the run has joined yet, or the data were deleted; check store.url and run.name", e.Run)
}

// Limits of a status.
const (
	statusPhases = 1000 // newest phases that are read
	statusShown  = 20   // phases and calls that are listed
	statusCalls  = 10_000
)

// ReadStatus reads the status of a run from its store, with read-only commands. The error is an *EmptyError if the store
// has no data of the run. The context should have a deadline.
func ReadStatus(ctx context.Context, o Options) (*Status, error) {
	if err := checkName("a run", o.Run); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if o.URL == "" {
		return nil, errors.New("store: without store.url the store is embedded in the process of mgrpo train, and no other process can read it")
	}
	opts, err := clientOptions(o)
	if err != nil {
		return nil, err
	}
	s := &Store{opts: o, rdb: redis.NewUniversalClient(opts)}
	status, err := s.Status(ctx)
	if err = errors.Join(err, s.rdb.Close()); err != nil {
		return nil, err
	}
	return status, nil
}

// Status reads the status of the run, as ReadStatus does.
func (s *Store) Status(ctx context.Context) (*Status, error) {
	r := &statusReader{s: s, ctx: ctx, out: Status{Run: s.opts.Run}}
	if err := r.read(); err != nil {
		return nil, err
	}
	return &r.out, nil
}

// Ping waits until the store answers a request.
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

// ask sends several commands together. A missing key is not an error.
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

// run reads the greeting, the round and its end.
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

// number returns the count that a reply holds as text, or 0 if the key is missing.
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

// agents reads the place, the version and the meeting points of each agent.
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
		if left := answers[i].lease.Val(); left >= 0 { // negative: there is no lease
			st.Alive, st.LeaseLeft = true, left.Seconds()
			st.Silent = max(r.s.opts.Lease-left, 0).Seconds()
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

// calls reads the claimed invocations of each agent.
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

// inHand lists the oldest of an agent's claims, which map "PHASE ID" to the id of the stream's entry.
func (r *statusReader) inHand(agent string, claims map[string]string) ([]Call, error) {
	var out []Call
	for name, entry := range claims {
		phase, id, ok := strings.Cut(name, " ")
		submitted, _, _ := strings.Cut(entry, "-")
		ms, err := strconv.ParseInt(submitted, 10, 64)
		if !ok || err != nil || len(id) > maxID+200 || len(phase) > 64 {
			return nil, &MalformedError{Key: r.s.key("claimed", agent), Msg: fmt.Sprintf("%q with %q is not a claimed invocation", clip(name), clip(entry))}
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

// newestPhases returns the names of the newest phases, the oldest first. There is one phase for each step, without
// checkpoints.
func (s *Store) newestPhases(ctx context.Context) (names []string, err error) {
	for from := int64(0); ; from += statusPhases {
		page, err := s.rdb.ZRangeByScore(ctx, s.key("phases"), &redis.ZRangeBy{Min: "-inf", Max: "+inf", Offset: from, Count: statusPhases}).Result()
		if err != nil {
			return nil, err
		}
		names = append(names, page...)
		names = names[max(0, len(names)-statusPhases):]
		if len(page) < statusPhases {
			return names, nil
		}
	}
}

// listPhases lists the phases from the oldest version of any agent, and all checkpoints, which may be saved after later
// steps have begun.
func (r *statusReader) listPhases() error {
	names, err := r.s.newestPhases(r.ctx)
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

// parsePhase reads the name of a phase.
func parsePhase(name string) (Phase, error) {
	kind, number, _ := strings.Cut(name, "-")
	step, err := strconv.ParseInt(number, 10, 64)
	p := Phase{Kind: kind, Step: step}
	if err != nil || p.check() != nil || p.String() != name {
		return Phase{}, fmt.Errorf("%q is not a phase", clip(name))
	}
	return p, nil
}

// hasNoPlan reports whether a phase is the saving of a checkpoint, which has no rollouts.
func (p Phase) hasNoPlan() bool { return p.Kind == checkpointOf(0).Kind }

// reports returns the reports that every agent publishes in a phase, in this order. A worker that starts from a checkpoint
// already has its manifest and does not report its part.
func (p Phase) reports() []report {
	switch p.Kind {
	case Train(0).Kind:
		return []report{trajectoriesReport}
	case checkpointOf(0).Kind:
		return []report{partReport, manifestReport}
	}
	return nil // the trajectories of an evaluation are not trained on
}

// progress reads the progress of the phases, and keeps the incomplete ones.
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
				break // this report is not due yet: the run still waits for the previous report
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
		if st.Begun && st.Rollouts == 0 { // a phase without queries ends the run
			continue
		}
		if st.pending() {
			r.out.Phases = append(r.out.Phases, st)
		}
	}
	r.out.Phases = r.out.Phases[max(len(r.out.Phases)-statusShown, 0):]
	return nil
}

// silent lists the agents that have not published a report.
func (r *statusReader) silent(said []*redis.BoolCmd) []string {
	var out []string
	for i, there := range said {
		if !there.Val() {
			out = append(out, r.names[i])
		}
	}
	return out
}

// behind lists the agents that have not committed a version.
func (r *statusReader) behind(version int64) []string {
	var out []string
	for _, a := range r.out.Agents {
		if a.Version == nil || *a.Version < version {
			out = append(out, a.Agent)
		}
	}
	return out
}

// pending reports whether the phase is incomplete.
func (p *PhaseStatus) pending() bool {
	if p.planless {
		return len(p.Lacking) > 0
	}
	return !p.Begun || !p.Ended || p.Outcomes < p.Rollouts || len(p.Lacking) > 0 || len(p.Behind) > 0
}

// WaitsFor lists the events that the run is waiting for, one per line, the most important first. The list is empty if the
// run has nothing left to do.
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
		say(where(func(a AgentStatus) bool { return a.Alive }), "its worker to leave the stopped round")
		return out
	}
	say(where(func(a AgentStatus) bool { return !a.Alive && !a.Finished }), "a worker")
	say(where(func(a AgentStatus) bool { return a.Alive && !a.Ready }), "its worker to be ready to begin")
	for i := range s.Phases {
		s.Phases[i].waits(say, s.main())
	}
	return out
}

// main returns a list with only the main agent, which begins and ends phases.
func (s *Status) main() []string {
	if len(s.Agents) == 0 {
		return nil
	}
	return []string{s.Agents[0].Agent}
}

// waits calls say with the events that a phase is waiting for: the first of its stages that is incomplete.
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
