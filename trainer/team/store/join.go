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

// joinScript gives an agent's place to a worker.
//
// If no worker is alive, the worker begins a round: its agreement is stored, and the epochs of all agents increase, so that
// suspended workers of earlier rounds are fenced. The data of earlier rounds are deleted, except the record and the numbers
// of workers that were lost while they had claimed invocations. Every other worker must have an equal agreement. A worker
// that follows a lost worker within the round takes over its place and reads its streams from the beginning, or rewinds the
// team.
var joinScript = newScript("epochs events meta versions phases stop offers record claimed ready finished lease leases...",
	"agent leaseToken milliseconds agreement ownOffers prefix nonce repeatable ownVersions process complete agents...", `
local own = redis.call('GET', lease)
if own == leaseToken then
  return {'joined', redis.call('HGET', epochs, agent), redis.call('HGET', meta, 'nonce')}
end
if own then return {'taken', ''} end
local alive = ''
for i, name in ipairs(agents) do
  if redis.call('EXISTS', leases[i]) == 1 then alive = alive .. ' ' .. name end
end
if alive == '' and complete == '1' then
  local over = true
  for _, name in ipairs(agents) do over = over and redis.call('HEXISTS', finished, name) == 1 end
  if over then return {'over'} end
end
`+dropPhases+`
-- Each invocation that the last worker had claimed may be the reason why it was lost, so its count of lost workers goes
-- up. If this process had the place itself, no worker was lost.
if redis.call('HGET', epochs, ':process:' .. agent) ~= process then
  for _, claim in ipairs(redis.call('HKEYS', claimed)) do
    local phase, id = string.match(claim, '^(%S+) (.*)$')
    local step = phase and string.match(phase, '%-(%d+)$')
    if step then
      redis.call('HINCRBY', prefix .. 'lost:' .. phase, id, 1)
      redis.call('ZADD', prefix .. 'losses', step, phase)
    end
  end
end
redis.call('UNLINK', claimed)
local function place()
  local epoch = redis.call('HINCRBY', epochs, agent, 1)
  redis.call('HSET', epochs, ':process:' .. agent, process)
  redis.call('HSET', offers, agent, ownOffers)
  redis.call('SET', lease, leaseToken, 'PX', milliseconds)
  redis.call('PUBLISH', events, 'offers')
  return {'joined', tostring(epoch), redis.call('HGET', meta, 'nonce')}
end
if alive == '' then
  dropPhases('-inf', '+inf')
  redis.call('UNLINK', versions, stop, offers, ready, finished)
  redis.call('HDEL', meta, 'asked', 'afresh')
  redis.call('HSET', meta, 'agreement', agreement, 'nonce', nonce)
  local round = redis.call('HINCRBY', meta, 'round', 1)
  redis.call('HSET', epochs, ':nonce', nonce)
  for _, name in ipairs(agents) do redis.call('HINCRBY', epochs, name, 1) end
  redis.call('XADD', record, 'MAXLEN', '~', '1000000', '*', 'event', 'round', 'round', round, 'agent', agent)
  return place()
end
if redis.call('EXISTS', stop) == 1 then
  return {'stopping', alive, redis.call('HGET', stop, 'agent') or '', redis.call('HGET', stop, 'reason') or ''}
end
local stored = redis.call('HGET', meta, 'agreement')
if stored ~= agreement then return {'differs', alive, stored or ''} end
local offered, version = redis.call('HGET', offers, agent), redis.call('HGET', versions, agent)
if not offered then return place() end
local again = offered == ownOffers
if version then
  local function has(state) return string.find(' ' .. ownVersions .. ' ', ' ' .. state .. ' ', 1, true) end
  local beginning = version == '0' and redis.call('HGET', meta, 'afresh')
  again = repeatable == '1' and (has(version) or beginning and has('afresh'))
end
if not again then
  local reason = 'its worker was lost, and the successor cannot continue from version ' .. (version or '(none yet)')
  redis.call('HSET', stop, 'agent', agent, 'reason', reason, 'kind', 'rewind')
  redis.call('PUBLISH', events, 'stop')
  return {'stopping', alive, agent, reason}
end
return place()
`)
