package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Afresh is the version of an offer to begin the run from the start, without a checkpoint.
const Afresh = -1

// Offer is a state from which a worker can continue: a verified checkpoint, or the start of the run.
type Offer struct {
	Version int64  `json:"version"`          // number of its training steps, or Afresh
	Digest  string `json:"digest,omitempty"` // of its manifest, which is the same for all agents
	// Today's date for prompts, YYYY-MM-DD, if the run continues from here; the main agent's date is used.
	Date string `json:"date,omitempty"`
}

// same reports whether two workers offer the same state.
func (o Offer) same(other Offer) bool { return o.Version == other.Version && o.Digest == other.Digest }

// JoinRequest holds the settings on which the workers of a run must agree, and the states from which this worker can start.
type JoinRequest struct {
	Config        map[string]string // settings on which the workers must agree, by key; no secrets
	Agents        []string          // all agents of the run, the main agent first
	Offers        []Offer           // newest first
	Deterministic bool              // the work of a lost worker can be repeated bit for bit
	Finished      bool              // nothing is left to do after the newest of the offers

	// Renew reads Offers and Finished again. Join calls it before each request for the place: as long as another worker has
	// the place, that worker may write and delete checkpoints. nil: they do not change.
	Renew func() (offers []Offer, finished bool, err error)
}

// Join takes an agent's place in the run. If no worker is alive, the worker that joins begins a round: it deletes the data
// of earlier rounds and fences their workers. The other workers must have the same settings; otherwise they receive an
// error that lists the differences.
//
// If another worker has the place, Join waits for one lease, until that worker leaves or its lease expires. So a worker can
// be started again immediately after a crash. Then Join returns an error. The worker offers the states that it has at the
// moment when it gets the place.
//
// If the agent's last worker in the round was lost, the new worker can take over the place. It must offer
// the version that the store has for the agent, and the run must be deterministic, so that it can repeat
// the lost work. Otherwise it sends all agents back to a state that they share: it stops the round with a
// rewind, and Join waits until all workers have left. waiting is called with the reason for a wait.
//
// If nothing is left to do for this worker, and all workers had finished the run when the last of
// them left, Join returns ErrOver. A new round would wait for workers that will not come back.
func (s *Store) Join(ctx context.Context, agent string, r JoinRequest, waiting func(what string)) (*Member, error) {
	m := &Member{Store: s, agent: agent, leaseToken: rand.Text()}
	defer failpoint.Around("join.place")()
	since := time.Now()
	for refused := false; ; {
		if err := r.renew(); err != nil {
			return nil, err
		}
		j, err := s.joining(m, r)
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
		limit := s.opts.Timeout
		if answer.taken { // the other worker may be dead
			limit = s.opts.Lease + s.opts.Lease/4
		}
		if answer.final || time.Since(since) > limit {
			return nil, answer.refusal
		}
		if !refused {
			refused = true
			waiting(answer.refusal.Error())
		}
		select {
		case <-time.After(min(s.opts.Lease/20, time.Second)):
		case <-ctx.Done():
			return nil, errors.Join(answer.refusal, context.Cause(ctx))
		}
	}
	s.mu.Lock()
	s.agents = slices.Clone(r.Agents)
	s.mu.Unlock()
	m.ctx, m.cancel = context.WithCancelCause(s.ctx)
	m.beats.Go(m.beat)
	s.listen(ctx, agent)
	s.checkStop() // a stop before the subscription was not received
	return m, nil
}

func (r *JoinRequest) renew() (err error) {
	if r.Renew != nil {
		r.Offers, r.Finished, err = r.Renew()
	}
	return err
}

// joining is a request for a place, with the values for joinScript.
type joining struct {
	s        *Store
	agent    string
	greeting greeting
	offers   offers
	values   values
}

func (s *Store) joining(m *Member, r JoinRequest) (*joining, error) {
	agent := m.agent
	j := &joining{s: s, agent: agent, offers: r.Offers,
		greeting: greeting{Protocol: ProtocolVersion, Agents: r.Agents, Config: r.Config, Deterministic: r.Deterministic}}
	if err := errors.Join(j.greeting.check(), j.offers.check()); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if !slices.Contains(r.Agents, agent) {
		return nil, fmt.Errorf("store: %s is not an agent of %v", agent, r.Agents)
	}
	own, err := encode(j.greeting)
	if err != nil {
		return nil, fmt.Errorf("store: the greeting: %w", err)
	}
	offered, err := encode(j.offers)
	if err != nil {
		return nil, fmt.Errorf("store: the offers: %w", err)
	}
	leases := make([]string, len(r.Agents))
	for i, a := range r.Agents {
		leases[i] = s.key("lease", a)
	}
	j.values = values{
		"epochs": s.key("epochs"), "events": s.key("events"), "meta": s.key("meta"), "versions": s.key("versions"), "phases": s.key("phases"),
		"stop": s.key("stop"), "offers": s.key("offers"), "record": s.key("record"), "claimed": s.key("claimed", agent),
		"ready": s.key("met", string(Ready)), "finished": s.key("met", string(Finished)), "lease": s.key("lease", agent), "leases...": leases,
		"agent": agent, "leaseToken": m.leaseToken, "milliseconds": s.opts.Lease.Milliseconds(), "greeting": own, "ownOffers": offered,
		"prefix": s.key(""), "nonce": rand.Text(), "repeatable": bit(r.Deterministic), "ownVersions": strings.Join(j.offers.versions(), " "),
		"process": s.opts.process, "nothingLeft": bit(r.Finished), "agents...": r.Agents}
	return j, nil
}

// bit converts a bool to the number that scripts read.
func bit(b bool) int {
	if b {
		return 1
	}
	return 0
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
	m.epoch, m.nonce, m.offers = answer.epoch, answer.nonce, j.offers
	return answer, err
}

// read reads the script's reply. Its parts may come from any program.
func (j *joining) read(reply []any) (joinAnswer, error) {
	malformed := func(key, msg string) (joinAnswer, error) {
		return joinAnswer{}, &MalformedError{Key: j.s.key(key), Msg: msg}
	}
	alive := clip(word(reply, 1))
	switch word(reply, 0) {
	case "joined":
		epoch, err := strconv.ParseInt(word(reply, 1), 10, 64)
		if err != nil || epoch < 1 {
			return malformed("epochs", fmt.Sprintf("%q is not an epoch", clip(word(reply, 1))))
		}
		return joinAnswer{epoch: epoch, nonce: clip(word(reply, 2))}, nil
	case "over":
		return joinAnswer{}, ErrOver
	case "taken":
		return joinAnswer{taken: true, refusal: fmt.Errorf("store: another worker of %s is alive in run %s, or was within its lease of %v; an agent has one worker: stop the other, or wait for the lease to expire", j.agent, j.s.opts.Run, j.s.opts.Lease)}, nil
	case "stopping":
		return joinAnswer{refusal: fmt.Errorf("store: run %s was stopped by %s (%s), and not all of its workers have left:%s",
			j.s.opts.Run, clip(word(reply, 2)), clip(word(reply, 3)), alive)}, nil
	case "differs":
		there, err := decode[greeting](j.s.key("meta"), word(reply, 2))
		if err != nil {
			return joinAnswer{}, err
		}
		return joinAnswer{final: true, refusal: fmt.Errorf("store: %s differs from the worker(s) of%s: %s", j.agent, alive, j.greeting.differences(&there))}, nil
	}
	return malformed("meta", clip(fmt.Sprintf("join returned %v", reply)))
}

// joinScript gives an agent's place to a worker.
//
// If no worker is alive, the worker begins a round: its greeting is stored, and the epochs of all agents increase, so that
// suspended workers of earlier rounds are fenced. The data of earlier rounds are deleted, except the record and the numbers
// of workers that were lost while they had claimed invocations. Every other worker must have an equal greeting. A worker
// that follows a lost worker within the round takes over its place and reads its streams from the beginning, or rewinds the
// team.
var joinScript = newScript("epochs events meta versions phases stop offers record claimed ready finished lease leases...",
	"agent leaseToken milliseconds greeting ownOffers prefix nonce repeatable ownVersions process nothingLeft agents...", `
local own = redis.call('GET', lease)
if own == leaseToken then
  return {'joined', redis.call('HGET', epochs, agent), redis.call('HGET', meta, 'nonce')}
end
if own then return {'taken', ''} end
local alive = ''
for i, name in ipairs(agents) do
  if redis.call('EXISTS', leases[i]) == 1 then alive = alive .. ' ' .. name end
end
if alive == '' and nothingLeft == '1' then
  local over = true
  for _, name in ipairs(agents) do over = over and redis.call('HEXISTS', finished, name) == 1 end
  if over then return {'over'} end
end
`+drop+`
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
  redis.call('HSET', meta, 'hello', greeting, 'nonce', nonce)
  local round = redis.call('HINCRBY', meta, 'round', 1)
  redis.call('HSET', epochs, ':nonce', nonce)
  for _, name in ipairs(agents) do redis.call('HINCRBY', epochs, name, 1) end
  redis.call('XADD', record, 'MAXLEN', '~', '1000000', '*', 'event', 'round', 'round', round, 'agent', agent)
  return place()
end
if redis.call('EXISTS', stop) == 1 then
  return {'stopping', alive, redis.call('HGET', stop, 'agent') or '', redis.call('HGET', stop, 'reason') or ''}
end
local hello = redis.call('HGET', meta, 'hello')
if hello ~= greeting then return {'differs', alive, hello or ''} end
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

// Start is the state from which a round continues.
type Start struct {
	Offer
	Refused []string // newer states, with the agents that do not have them
	Follows bool     // the worker took over the place in the middle of a round
}

// Start waits until every agent has offered its states, and chooses the newest state that all agents offer. If there is
// none, the error lists the offers. A worker that took over a place in the middle of a round continues from the agent's
// version in the store.
func (m *Member) Start(ctx context.Context) (Start, error) {
	version, err := m.versionThere(ctx)
	if err != nil {
		return Start{}, err
	}
	if version != "" {
		offered := m.offers.versions()
		i := slices.Index(offered, version)
		if i < 0 {
			i = slices.Index(offered, "afresh")
		}
		start := Start{Offer: m.offers[i], Follows: true} // joinScript gives the place only to a worker that offers it
		start.Date, err = m.dateThere(ctx)
		return start, err
	}
	there := map[string]offers{}
	key := m.key("offers")
	err = m.wait(ctx, func(ctx context.Context) (bool, error) {
		texts, err := m.rdb.HGetAll(ctx, key).Result()
		if err != nil {
			return false, err
		}
		for agent, text := range texts {
			if there[agent], err = decode[offers](key+" "+clip(agent), text); err != nil {
				return false, err
			}
		}
		return len(lacking(m.allAgents(), there)) == 0, nil
	}, func() ([]string, string) { return lacking(m.allAgents(), there), "joining the run" }, "offers")
	if err != nil {
		return Start{}, err
	}
	start, err := newestShared(m.allAgents(), there)
	if err != nil {
		return Start{}, err
	}
	defer failpoint.Around("join.start")()
	_, err = m.write(ctx, startScript, "the start", values{
		"versions": m.key("versions"), "record": m.key("record"), "meta": m.key("meta"),
		"version": max(start.Version, 0), "offered": start.Version, "digest": start.Digest, "date": start.Date})
	return start, err
}

// dateThere returns the round's date in the store.
func (m *Member) dateThere(ctx context.Context) (date string, err error) {
	err = m.retry(ctx, "the date of the round", func(ctx context.Context) error {
		date, err = m.rdb.HGet(ctx, m.key("meta"), "date").Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	if err == nil && !validDate(date) {
		err = &MalformedError{Key: m.key("meta"), Msg: fmt.Sprintf("%q is not a date", clip(date))}
	}
	return date, err
}

func validDate(s string) bool {
	_, err := time.Parse(time.DateOnly, s)
	return s == "" || err == nil
}

// versionThere returns the version of the member's agent in the store, or "" if it has not started in this round.
func (m *Member) versionThere(ctx context.Context) (version string, err error) {
	err = m.retry(ctx, "the version of "+m.agent, func(ctx context.Context) error {
		version, err = m.rdb.HGet(ctx, m.key("versions"), m.agent).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		return err
	})
	return version, err
}

// startScript sets the first version of an agent in a round, once.
var startScript = fencedScript("versions record meta", "version offered digest date", `
redis.call('HSET', meta, 'date', date)
if tonumber(offered) < 0 then redis.call('HSET', meta, 'afresh', '1') end
if redis.call('HSETNX', versions, agent, version) == 1 then
  redis.call('XADD', record, '*', 'event', 'start', 'agent', agent, 'epoch', epoch, 'version', offered, 'digest', digest)
end
return {'new'}
`)

// newestShared returns the newest state that all agents offer. If several states have the same version, it is the first one
// that the main agent offers. agents is in the run's order.
func newestShared(agents []string, there map[string]offers) (Start, error) {
	var start Start
	var candidates offers
	for _, a := range agents {
		candidates = append(candidates, there[a]...)
	}
	slices.SortStableFunc(candidates, func(a, b Offer) int { return cmp.Compare(b.Version, a.Version) })
	for i, o := range candidates { // the main agent's offers come first among equal versions
		if slices.ContainsFunc(candidates[:i], o.same) {
			continue
		}
		var without []string
		for _, a := range agents {
			if !slices.ContainsFunc(there[a], o.same) {
				without = append(without, a)
			}
		}
		if len(without) == 0 {
			start.Offer = o
			return start, nil
		}
		start.Refused = append(start.Refused, fmt.Sprintf("%s is missing at %s", o, strings.Join(without, ", ")))
	}
	return start, fmt.Errorf("store: there is no state that all agents can start from: %s; restore the missing checkpoints of run.dir, or start a new run with another run.dir for all", strings.Join(start.Refused, "; "))
}

func (o Offer) String() string {
	if o.Version == Afresh {
		return "a start from the beginning"
	}
	return fmt.Sprintf("the checkpoint of version %d (%.8s)", o.Version, o.Digest)
}

// offers lists the states from which an agent can start.
type offers []Offer

const maxOffers = 1000

func (o *offers) check() error {
	if len(*o) == 0 || len(*o) > maxOffers {
		return fmt.Errorf("the worker offers %d states to start from; the number must be 1 to %d", len(*o), maxOffers)
	}
	for _, x := range *o {
		if x.Version < Afresh || len(x.Digest) > 128 || strings.ContainsFunc(x.Digest, func(c rune) bool { return c <= ' ' || c > '~' }) {
			return fmt.Errorf("version %d with digest %.140q is not a state to start from", x.Version, x.Digest)
		}
		if !validDate(x.Date) {
			return fmt.Errorf("version %d is offered with the date %.140q: want YYYY-MM-DD", x.Version, x.Date)
		}
	}
	return nil
}

// versions returns the versions of the offers as text, "afresh" for Afresh.
func (o offers) versions() []string {
	out := make([]string, len(o))
	for i, x := range o {
		if out[i] = strconv.FormatInt(x.Version, 10); x.Version == Afresh {
			out[i] = "afresh"
		}
	}
	return out
}
