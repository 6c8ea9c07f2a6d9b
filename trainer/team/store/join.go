package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// JoinRequest holds the settings on which the workers of a run must agree, and the states from which this worker can start.
type JoinRequest struct {
	Config        map[string]string // settings on which the workers must agree, by key; no secrets
	Agents        []string          // all agents of the run, the main agent first
	Offers        []Offer           // newest first
	Deterministic bool              // the work of a lost worker can be repeated bit for bit
	Complete      bool              // nothing is left to do after the newest of the offers

	// Renew reads Offers and Complete again. Join calls it before each request for the place: as long as another worker has
	// the place, that worker may write and delete checkpoints. nil: they do not change.
	Renew func() (offers []Offer, complete bool, err error)
}

// Join takes an agent's place in the run. If no worker is alive, the worker that joins begins a round: it deletes the data
// of earlier rounds and fences their workers. The other workers must have the same settings; otherwise they receive an
// error that lists the differences.
//
// If another worker has the place, Join waits until that worker leaves or its lease expires, but at most one and a quarter
// leases. After that it returns an error. So a worker can be started again immediately after a crash. The worker offers the
// states that it has at the moment when it gets the place.
//
// If the agent's last worker in the round was lost, the new worker can take over the place. It must offer
// the version that the store has for the agent, and the run must be deterministic, so that it can repeat
// the lost work. Otherwise it sends all agents back to a state that they share: it stops the round with a
// rewind, and Join waits until all workers have left. waiting is called with the reason for a wait.
//
// If nothing is left to do for this worker, and all workers had finished the run when the last of
// them left, Join returns ErrRunComplete. A new round would wait for workers that will not come back.
func (s *Store) Join(ctx context.Context, agent string, r JoinRequest, waiting func(what string)) (*Member, error) {
	m := newMember(s, agent)
	defer failpoint.Around("join.place")()
	since := time.Now()
	for refused := false; ; {
		var err error
		if r.Renew != nil {
			r.Offers, r.Complete, err = r.Renew()
		}
		if err != nil {
			return nil, err
		}
		j, err := newJoining(m, r)
		if err != nil {
			return nil, err
		}
		answer, err := j.ask(ctx, m)
		if err != nil {
			return nil, err
		}
		if answer.refusal == nil {
			break
		}
		limit := s.opt.Timeout
		if answer.taken { // the other worker may be dead
			limit = s.opt.Lease + s.opt.Lease/4
		}
		if answer.final || time.Since(since) > limit {
			return nil, answer.refusal
		}
		if !refused {
			refused = true
			waiting(answer.refusal.Error())
		}
		select {
		case <-time.After(min(s.opt.Lease/20, time.Second)):
		case <-ctx.Done():
			return nil, errors.Join(answer.refusal, context.Cause(ctx))
		}
	}
	s.agents.set(r.Agents)
	m.place.ctx, m.place.cancel = context.WithCancelCause(s.ctx)
	m.beats.Go(m.beat)
	_ = s.topics.channel.Subscribe(ctx, s.key("events", agent)) // after a failure the client subscribes when the connection is up again
	s.checkStop()                                               // a stop before the subscription was not received
	return m, nil
}

// joining is a request for a place, with the values for joinScript.
type joining struct {
	s         *Store
	agent     string
	agreement agreement
	offers    offers
	values    values
}

func newJoining(m *Member, r JoinRequest) (*joining, error) {
	s, agent := m.place.Store, m.Agent()
	j := &joining{s: s, agent: agent, offers: r.Offers,
		agreement: agreement{Protocol: ProtocolVersion, Agents: r.Agents, Config: r.Config, Deterministic: r.Deterministic}}
	if !slices.Contains(r.Agents, agent) {
		return nil, fmt.Errorf("store: %s is not an agent of %v", agent, r.Agents)
	}
	own, err := checkAndEncode("the agreement", &j.agreement)
	if err != nil {
		return nil, err
	}
	offered, err := checkAndEncode("the offers", &j.offers)
	if err != nil {
		return nil, err
	}
	leases := make([]string, len(r.Agents))
	for i, a := range r.Agents {
		leases[i] = s.key("lease", a)
	}
	j.values = values{
		"epochs": s.key("epochs"), "events": s.key("events"), "meta": s.key("meta"), "versions": s.key("versions"), "phases": s.key("phases"),
		"stop": s.key("stop"), "offers": s.key("offers"), "record": s.key("record"), "claimed": s.key("claimed", agent),
		"ready": s.key("barrier", string(Ready)), "finished": s.key("barrier", string(Finished)), "lease": s.key("lease", agent), "leases...": leases,
		"agent": agent, "leaseToken": m.leaseToken, "milliseconds": s.opt.Lease.Milliseconds(), "agreement": own, "ownOffers": offered,
		"prefix": s.key(""), "nonce": rand.Text(), "repeatable": r.Deterministic, "ownVersions": strings.Join(j.offers.versions(), " "),
		"process": s.opt.process, "complete": r.Complete, "agents...": r.Agents} // the client writes a bool as 1 or 0
	return j, nil
}

// joinAnswer is a place, or the reason why the worker does not get one.
type joinAnswer struct {
	epoch   int64
	nonce   string
	refusal error
	taken   bool // another worker of the agent has the place
	final   bool // waiting would not help
}

// ask requests the place once. If the worker gets it, ask fills in m.
func (j *joining) ask(ctx context.Context, m *Member) (joinAnswer, error) {
	var reply []any
	keys, args := joinScript.inOrder(j.values)
	err := j.s.retry(ctx, "a place for "+j.agent, func(ctx context.Context) (err error) {
		reply, err = joinScript.Run(ctx, j.s.rdb, keys, args...).Slice()
		return err
	})
	if err != nil {
		return joinAnswer{}, err
	}
	answer, err := j.read(reply)
	m.place.epoch, m.place.nonce, m.Round.offers = answer.epoch, answer.nonce, j.offers
	return answer, err
}

// read reads the script's reply. Its parts may come from any program.
func (j *joining) read(reply []any) (joinAnswer, error) {
	malformed := func(key, msg string) (joinAnswer, error) {
		return joinAnswer{}, &MalformedError{Key: j.s.key(key), Msg: msg}
	}
	alive := clip(replyText(reply, 1))
	switch replyText(reply, 0) {
	case "joined":
		epoch, err := strconv.ParseInt(replyText(reply, 1), 10, 64)
		if err != nil || epoch < 1 {
			return malformed("epochs", fmt.Sprintf("%q is not an epoch", clip(replyText(reply, 1))))
		}
		return joinAnswer{epoch: epoch, nonce: clip(replyText(reply, 2))}, nil
	case "over":
		return joinAnswer{}, ErrRunComplete
	case "taken":
		return joinAnswer{taken: true, refusal: fmt.Errorf("store: another worker of %s is alive in run %s, or was within its lease of %v; "+
			"an agent has one worker: stop the other, or wait for the lease to expire", j.agent, j.s.opt.Run, j.s.opt.Lease)}, nil
	case "stopping":
		return joinAnswer{refusal: fmt.Errorf("store: run %s was stopped by %s (%s), and not all of its workers have left:%s",
			j.s.opt.Run, clip(replyText(reply, 2)), clip(replyText(reply, 3)), alive)}, nil
	case "differs":
		stored, err := decode[agreement](j.s.key("meta"), replyText(reply, 2))
		if err != nil {
			return joinAnswer{}, err
		}
		return joinAnswer{final: true, refusal: fmt.Errorf("store: %s differs from the worker(s) of%s: %s",
			j.agent, alive, j.agreement.differences(&stored))}, nil
	}
	return malformed("meta", clip(fmt.Sprintf("join returned %v", reply)))
}
