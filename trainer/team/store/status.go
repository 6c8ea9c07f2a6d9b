package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	Agent        string  `json:"agent"`
	Epoch        int64   `json:"epoch"`
	Alive        bool    `json:"alive"`                   // a worker has the place
	LeaseLeft    float64 `json:"lease_left_seconds"`      // time until its worker counts as dead if it remains silent
	Silent       float64 `json:"silent_seconds"`          // since its worker renewed the lease, if it has this configuration's lease
	Version      *int64  `json:"version,omitempty"`       // number of committed training steps; absent: not started in this round
	Lag          int64   `json:"lag"`                     // number of versions behind the agent with the newest version
	Ready        bool    `json:"ready"`                   // its worker was ready to begin this round
	Finished     bool    `json:"finished"`                // its worker has finished the run
	Claimed      []Call  `json:"claimed,omitempty"`       // claimed invocations, oldest first
	ClaimedCount int64   `json:"claimed_count,omitempty"` // number of claimed invocations; Claimed lists the oldest
}

// Missing reports whether the worker that has the place is late: it has not renewed its lease for more than half of the lease. A
// worker renews it four times per lease.
func (a AgentStatus) Missing() bool { return a.Alive && a.Silent > a.LeaseLeft }

// Call is an invocation that a worker has claimed and not answered.
type Call struct {
	Phase    string  `json:"phase"`
	ID       string  `json:"id"`
	Age      float64 `json:"age_seconds"` // since it was submitted
	Delivery int64   `json:"delivery"`    // 1: no worker was lost while it had claimed the invocation
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
	return fmt.Sprintf("store: the store has no data of run %s: no worker of the run has joined yet, or the data were deleted; check "+
		"store.url and run.name", e.Run)
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
	redisOpt, err := clientOptions(o)
	if err != nil {
		return nil, err
	}
	s := &Store{opt: o, rdb: redis.NewUniversalClient(redisOpt)}
	status, err := readStatus(ctx, s)
	return status, errors.Join(err, s.rdb.Close())
}

// Status reads the status of the run, as ReadStatus does.
func (d *Display) Status(ctx context.Context) (*Status, error) { return readStatus(ctx, d.at.Store) }

func readStatus(ctx context.Context, s *Store) (*Status, error) {
	r := &statusReader{s: s, ctx: ctx, out: Status{Run: s.opt.Run}}
	if err := r.read(); err != nil {
		return nil, err
	}
	return &r.out, nil
}

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

// run reads the agreement, the round and its end.
func (r *statusReader) run() error {
	meta, stopKey := r.s.key("meta"), r.s.key("stop")
	var stored, nonce, round, asked *redis.StringCmd
	var stop [3]*redis.StringCmd
	var now *redis.TimeCmd
	err := r.ask(func(p redis.Pipeliner) {
		stored, nonce = p.HGet(r.ctx, meta, "agreement"), p.HGet(r.ctx, meta, "nonce")
		round, asked = p.HGet(r.ctx, meta, "round"), p.HGet(r.ctx, meta, "asked")
		for i, field := range []string{"agent", "reason", "kind"} {
			stop[i] = p.HGet(r.ctx, stopKey, field)
		}
		now = p.Time(r.ctx)
	})
	if err != nil {
		return err
	}
	if stored.Err() != nil {
		return &EmptyError{r.out.Run}
	}
	a, err := decode[agreement](meta+" agreement", stored.Val())
	if err != nil {
		return err
	}
	if a.Protocol != ProtocolVersion {
		return fmt.Errorf("its workers have protocol version %d, and this program has %d", a.Protocol, ProtocolVersion)
	}
	r.names, r.now = a.Agents, now.Val()
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

// agents reads the place, the version and the barriers of each agent.
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
				p.HExists(r.ctx, r.s.key("barrier", string(Ready)), a), p.HExists(r.ctx, r.s.key("barrier", string(Finished)), a)}
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
			st.Silent = max(r.s.opt.Lease-left, 0).Seconds()
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
		if st.ClaimedCount = counts[i].Val(); st.ClaimedCount == 0 || st.ClaimedCount > statusCalls {
			continue
		}
		claims, err := r.s.rdb.HGetAll(r.ctx, r.s.key("claimed", a)).Result()
		if err != nil {
			return err
		}
		if st.Claimed, err = r.oldestClaims(a, claims); err != nil {
			return err
		}
	}
	return nil
}

// oldestClaims lists the oldest of an agent's claims, which map "PHASE ID" to the id of the stream's entry.
func (r *statusReader) oldestClaims(agent string, claims map[string]string) ([]Call, error) {
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

// WaitsFor lists the events that the run is waiting for, one per line, the most important first. The list is empty if the
// run has nothing left to do.
func (s *Status) WaitsFor() []string {
	var out []string
	add := func(agents []string, what string) {
		if len(agents) > 0 {
			out = append(out, strings.Join(agents, ", ")+": "+what)
		}
	}
	where := func(matches func(AgentStatus) bool) (agents []string) {
		for _, a := range s.Agents {
			if matches(a) {
				agents = append(agents, a.Agent)
			}
		}
		return agents
	}
	if s.Stop != nil {
		add(where(func(a AgentStatus) bool { return a.Alive }), "its worker to leave the stopped round")
		return out
	}
	add(where(func(a AgentStatus) bool { return !a.Alive && !a.Finished }), "a worker")
	add(where(func(a AgentStatus) bool { return a.Alive && !a.Ready }), "its worker to be ready to begin")
	all := where(func(AgentStatus) bool { return true })
	for i := range s.Phases {
		s.Phases[i].waits(add, all[:min(1, len(all))]) // the main agent begins and ends phases
	}
	return out
}
