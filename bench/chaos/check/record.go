package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// entry is an entry of the record: the beginning of a round, an agent's start in a round, or a version that it committed.
type entry struct {
	id      string
	event   string // round, start, version
	round   int64
	agent   string
	epoch   int64
	version int64
	digest  string // of the checkpoint that the agent starts from
}

// history is the state after the entries that were read.
type history struct {
	f       *Findings
	round   int64
	from    *entry // the round's first start
	started int64  // version of the newest start
	// Versions of the agents that have started in the round; before the first start, the versions of the previous round.
	version map[string]int64
	epoch   map[string]int64 // newest epoch of each agent
	commits map[string]int   // number of versions that each agent committed, in all rounds
}

// record checks the run's history. Rounds are numbered without gaps. All agents of a round start
// from the same checkpoint, which is not older than the previous round's. Each agent's versions
// go up one by one from there. No epoch falls, and the last round reaches the last step. A worker
// that joins after the others have ended begins a round without a start, which does not count.
func (f *Findings) record(ctx context.Context, s Settings) {
	entries, err := readRecord(ctx, s)
	if err != nil {
		f.void("the record: %v", err)
		return
	}
	f.rounds(s, entries)
}

func (f *Findings) rounds(s Settings, entries []entry) {
	h := &history{f: f, started: -1, epoch: map[string]int64{}, commits: map[string]int{}}
	for _, e := range entries {
		switch e.event {
		case "round":
			h.begin(e)
		case "start":
			h.start(e)
		case "version":
			h.commit(e)
		default:
			f.broken("record %s: unknown event %q", e.id, e.event)
		}
	}
	f.Rounds = int(h.round)
	for _, agent := range s.Agents {
		f.Redone += h.commits[agent] - int(s.Steps)
		if v, there := h.version[agent]; !there || v != s.Steps {
			f.broken("%s: the last round ends at version %d (%v), not %d", agent, v, there, s.Steps)
		}
	}
}

func (h *history) begin(e entry) {
	if e.round != h.round+1 {
		h.f.broken("record %s: round %d follows round %d", e.id, e.round, h.round)
	}
	h.round, h.from = e.round, nil
}

func (h *history) start(e entry) {
	if h.from == nil {
		h.from, h.version = &e, map[string]int64{}
		if e.version < h.started {
			h.f.broken("record %s: round %d starts from version %d, and a round before it from %d", e.id, h.round, e.version, h.started)
		}
		h.started = e.version
	}
	if e.version != h.from.version || e.digest != h.from.digest {
		h.f.broken("record %s: %s starts round %d from version %d (%.8s), %s from %d (%.8s)", e.id, e.agent, h.round, e.version, e.digest, h.from.agent,
			h.from.version, h.from.digest)
	}
	if _, again := h.version[e.agent]; again {
		h.f.broken("record %s: %s starts twice in round %d", e.id, e.agent, h.round)
	}
	h.version[e.agent] = max(e.version, 0)
	h.setEpoch(e, false)
}

func (h *history) commit(e entry) {
	was, there := h.version[e.agent]
	if h.from == nil || !there || e.version != was+1 {
		h.f.broken("record %s: version %d of %s follows %d (%v)", e.id, e.version, e.agent, was, there)
	}
	h.version[e.agent] = e.version
	h.commits[e.agent]++
	h.setEpoch(e, true)
}

// setEpoch stores the agent's epoch. A higher epoch in the middle of a round means that another worker took the place over.
func (h *history) setEpoch(e entry, inRound bool) {
	was := h.epoch[e.agent]
	if e.epoch < was {
		h.f.broken("record %s: %s writes with epoch %d after %d", e.id, e.agent, e.epoch, was)
	}
	if inRound && e.epoch > was {
		h.f.Takeovers++
	}
	h.epoch[e.agent] = e.epoch
}

func readRecord(ctx context.Context, s Settings) ([]entry, error) {
	opt, err := redis.ParseURL(s.Store)
	if err != nil {
		return nil, err
	}
	if opt.TLSConfig != nil {
		pem, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, err
		}
		opt.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: opt.TLSConfig.ServerName}
		opt.TLSConfig.RootCAs.AppendCertsFromPEM(pem)
	}
	c := redis.NewClient(opt)
	defer c.Close()
	messages, err := c.XRange(ctx, "mgrpo:{"+s.Run+"}:record", "-", "+").Result()
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, errors.New("it is empty")
	}
	var out []entry
	for _, m := range messages {
		text := func(name string) string { v, _ := m.Values[name].(string); return v }
		e := entry{id: m.ID, event: text("event"), agent: text("agent"), digest: text("digest")}
		for name, n := range map[string]*int64{"round": &e.round, "epoch": &e.epoch, "version": &e.version} {
			if v := text(name); v != "" {
				if *n, err = strconv.ParseInt(v, 10, 64); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", m.ID, name, err)
				}
			}
		}
		out = append(out, e)
	}
	return out, nil
}
