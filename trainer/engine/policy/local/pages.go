package local

import (
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// cachedSeq is a sequence with cached keys and values: one in flight, or the last turn of a conversation that may continue.
type cachedSeq struct {
	owner  *Tenant
	tokens []int32   // keys and values of the first `filled` are in the cache
	filled int       // number of tokens
	routes []uint16  // experts of the filled tokens, in a mixture
	tables [][]int32 // for each group of layers, the sequence's blocks in order; noBlock if a window has passed
	busy   bool      // in flight
	recurrence
	step    *model.State // of a module's step, while in flight; nil before the first step
	stale   bool         // the weights changed while it was busy: its keys and values must not be reused
	lastUse int64        // counter of admissions and ends
}

const noBlock = -1

// pages assigns blocks of the key-value cache to sequences and finds reusable prefixes. Sequences of a tenant share the
// blocks of a common prefix, and copy the block in which they diverge. Sequences of different tenants use one pool of
// blocks, but never share a block, since keys and values depend on adapters. pages computes no tensors.
type pages struct {
	groups  []arch.CacheGroup
	pools   []*pool // of each group
	rows    int     // most rows of a pass
	width   int     // experts of a token
	cached  []*cachedSeq
	clock   int64
	sharing bool // reuse cached prefixes; tests turn it off to show that results do not depend on it

	states  *states        // nil: the model has no recurrent states
	ended   []*model.State // of sequences whose flight ended, to be dropped before the next pass
	pending []move         // copies of states to make before the next pass
}

func newPages(c *arch.Config, opt Options) *pages {
	p := &pages{groups: c.CacheGroups(), rows: opt.PassRows, width: c.RouteWidth(), sharing: !opt.NoPrefixes && arch.Cached(*c)}
	for _, g := range p.groups {
		p.pools = append(p.pools, newPool(g.Blocks(opt.CacheTokens, max(opt.Slots, opt.Conversations), opt.PassRows)))
	}
	if c.GatedDelta != nil {
		p.states = newStates(arch.RecurrentStates(opt.Slots, opt.Conversations))
	}
	return p
}

// blocks returns the number of blocks of each group.
func (p *pages) blocks() (n []int) {
	for _, pool := range p.pools {
		n = append(n, len(pool.owners))
	}
	return n
}

// recurrentStates returns the number of recurrent states, 0 for a model without them.
func (p *pages) recurrentStates() int {
	if p.states == nil {
		return 0
	}
	return p.states.count
}

// move copies the keys and values of a block to another of the same group, or a recurrent state to another.
type move struct {
	group    int // stateGroup: from and to are states
	from, to int32
}

const stateGroup = -1

// prefix is the cached part of a sequence: the keys and values of the first `reuse` tokens of cached sequence `from`.
type prefix struct {
	from  *cachedSeq // nil: no part is cached
	reuse int
}

// find returns the longest reusable prefix of an owner's sequence. soon is true if a running sequence is computing a longer shared
// prefix, so waiting is cheaper than computing it twice (K rollouts of a prompt). For a model with recurrent states, find also requests a
// snapshot of a cached sequence in flight at the first token that differs.
func (p *pages) find(owner *Tenant, tokens []int32) (best prefix, soon bool) {
	usable, promised := len(tokens)-1, 0 // the last token must run through the model, for its logits
	for _, seq := range p.cached {
		if n := best.reuse; !p.sharing || seq.owner != owner || seq.stale || n >= min(usable, len(seq.tokens)) || seq.tokens[n] != tokens[n] {
			continue // its common prefix is not longer
		}
		c := commonPrefix(seq.tokens, tokens, usable)
		cached := min(c, seq.filled)
		if p.states != nil {
			cached = seq.longestResumable(seq.filled, cached)
		}
		if cached > best.reuse && p.canContinue(seq, cached) {
			best = prefix{seq, cached}
		}
		if seq.busy && c > seq.filled && (p.states == nil || seq.requestSnapshot(c)) {
			promised = max(promised, c)
		}
	}
	return best, promised > best.reuse
}

// firstSeen returns the index of the first block that a token at a position attends to.
func firstSeen(g arch.CacheGroup, position int) int {
	if g.Window == 0 {
		return 0
	}
	return max(0, position+1-g.Window) / arch.CacheBlock
}

// canContinue reports whether a sequence can continue after the first n tokens of a cached sequence,
// n ≥ 1. Layers with a window may have freed blocks that the next token attends to.
func (p *pages) canContinue(seq *cachedSeq, n int) bool {
	for g, group := range p.groups {
		if i := firstSeen(group, n); i*arch.CacheBlock < n && seq.tables[g][i] == noBlock {
			return false
		}
	}
	return true
}

// fits reports whether there is room for a sequence of the given number of tokens in addition to `running` others, each
// of which may need another block soon. Idle cached sequences make room. A single sequence always fits.
func (p *pages) fits(tokens int, from prefix, running int) bool {
	for g, group := range p.groups {
		need := group.Blocks(tokens+1, 1, p.rows)
		if from.from != nil {
			for _, b := range from.from.tables[g][:from.reuse/arch.CacheBlock] {
				if b != noBlock && p.pools[g].inFlight[b] > 0 {
					need-- // the block is cached, and is kept
				}
			}
		}
		if need+running > p.pools[g].available && running > 0 {
			return false
		}
	}
	return true
}

// open puts a sequence in flight, which must fit, after the prefix that find returned. The moves must be made before
// the next pass.
func (p *pages) open(owner *Tenant, tokens []int32, from prefix) (*cachedSeq, []move) {
	seq, moves := from.from, []move(nil)
	keepsState := p.states != nil && from.reuse == len(tokens)-1 // the state after a prompt remains for its other rollouts
	if seq == nil || seq.busy || seq.filled > from.reuse || keepsState || seq.partlyShared(p.pools) {
		seq, moves = p.fork(from)
		p.cached = append(p.cached, seq)
	} else { // the next turn of a conversation
		p.each(seq, (*pool).hold)
	}
	if seq.wanted, seq.prompt = nil, len(tokens); p.states != nil && len(tokens)-1 > seq.filled {
		seq.requestSnapshot(len(tokens) - 1) // where other rollouts of the prompt can continue
	}
	p.clock++
	seq.owner, seq.tokens, seq.busy, seq.lastUse = owner, append(seq.tokens[:0], tokens...), true, p.clock
	return seq, moves
}

// partlyShared reports whether the sequence's last block has room, and other cached sequences own it, too. Those sequences forked from
// this one at a snapshot that no longer exists.
func (seq *cachedSeq) partlyShared(pools []*pool) bool {
	if seq.filled%arch.CacheBlock == 0 {
		return false
	}
	for g, table := range seq.tables {
		if b := table[seq.filled/arch.CacheBlock]; b != noBlock && pools[g].owners[b] > 1 {
			return true
		}
	}
	return false
}

// fork makes a cached sequence in flight with a prefix of another one.
func (p *pages) fork(from prefix) (seq *cachedSeq, moves []move) {
	seq = &cachedSeq{tables: make([][]int32, len(p.groups)), busy: true, recurrence: recurrence{state: noState}}
	moves = p.begin(seq, from) // first: blocks may be taken from the prefix's own cached sequence, and then its states are freed
	if from.from != nil {
		moves = append(moves, p.forkBlocks(seq, from)...)
	}
	return seq, moves
}

// forkBlocks gives a new cached sequence the blocks of a prefix.
func (p *pages) forkBlocks(seq *cachedSeq, from prefix) (moves []move) {
	whole := from.reuse / arch.CacheBlock
	seq.routes = slices.Clone(from.from.routes[:from.reuse*p.width])
	for g := range p.groups {
		seq.tables[g] = slices.Clone(from.from.tables[g][:whole])
		for _, b := range seq.tables[g] {
			if b != noBlock {
				p.pools[g].own(b)
				p.pools[g].hold(b)
			}
		}
	}
	seq.filled = whole * arch.CacheBlock
	if from.reuse == seq.filled {
		return nil
	}
	var parted []int32
	for g := range p.groups {
		parted = append(parted, from.from.tables[g][whole])
	}
	if !p.extend(seq, from.reuse) { // there is no block to copy to; these few tokens are computed again
		if p.states != nil { // the state is that of all tokens
			p.each(seq, (*pool).release)
			p.each(seq, (*pool).drop)
			seq.tables, seq.filled = make([][]int32, len(p.groups)), 0
		}
		seq.routes = seq.routes[:seq.filled*p.width]
		return nil
	}
	seq.filled = from.reuse
	for g, b := range parted {
		moves = append(moves, move{group: g, from: b, to: seq.tables[g][whole]})
	}
	return moves
}

// extend gives a cached sequence in flight blocks for its first n tokens. It returns false if other cached sequences in
// flight have them all. Idle cached sequences give up as many as are needed.
func (p *pages) extend(seq *cachedSeq, n int) bool {
	for g, pool := range p.pools {
		for len(seq.tables[g]) < arch.CacheBlocks(n) {
			for len(pool.free) == 0 {
				if !p.evict() {
					return false
				}
			}
			b := pool.take()
			pool.own(b)
			pool.hold(b)
			seq.tables[g] = append(seq.tables[g], b)
		}
	}
	return true
}

// evict takes the last block from the least recently used idle cached sequence. It returns false if no cached sequence
// is idle.
func (p *pages) evict() bool {
	var oldest *cachedSeq
	for _, seq := range p.cached {
		if !seq.busy && (oldest == nil || seq.lastUse < oldest.lastUse) {
			oldest = seq
		}
	}
	if oldest == nil {
		return false
	}
	p.truncate(oldest, (oldest.filled-1)/arch.CacheBlock*arch.CacheBlock)
	return true
}

// truncate keeps the first n tokens of an idle cached sequence, or drops the cached sequence if no sequence can continue
// after them.
func (p *pages) truncate(seq *cachedSeq, n int) {
	if p.states != nil {
		n = seq.longestResumable(seq.filled, n)
	}
	if n > 0 && !p.canContinue(seq, n) {
		n = 0
	}
	if p.states != nil && n > 0 {
		p.keepUntil(seq, n)
	}
	seq.owner.stats.EvictedTokens += int64(seq.filled - n)
	seq.filled, seq.tokens, seq.routes = n, seq.tokens[:n], seq.routes[:n*p.width]
	if n == 0 {
		p.remove(seq)
	} else {
		p.trim(seq)
	}
}

// trim drops an idle cached sequence's blocks after its cached tokens.
func (p *pages) trim(seq *cachedSeq) {
	for g, table := range seq.tables {
		keep := arch.CacheBlocks(seq.filled)
		for _, b := range table[min(keep, len(table)):] {
			if b != noBlock {
				p.pools[g].drop(b)
			}
		}
		seq.tables[g] = table[:min(keep, len(table))]
	}
}

// fill records that a cached sequence in flight has the keys and values of n tokens. It drops blocks that no window will
// reach again, but keeps those that the n-th token attends to, for sequences that end or diverge there.
func (p *pages) fill(seq *cachedSeq, n int) {
	seq.filled = n
	p.takeSnapshot(seq)
	for g, group := range p.groups {
		table := seq.tables[g]
		for i := firstSeen(group, n-1) - 1; i >= 0 && table[i] != noBlock; i-- {
			p.pools[g].release(table[i])
			p.pools[g].drop(table[i])
			table[i] = noBlock
		}
	}
}

// close ends a cached sequence's flight. Its prefix remains reusable until the cached sequence becomes stale or gives it up.
func (p *pages) close(seq *cachedSeq) {
	p.each(seq, (*pool).release)
	p.clock++
	seq.busy, seq.lastUse, seq.tokens = false, p.clock, seq.tokens[:seq.filled]
	if seq.step != nil {
		p.ended, seq.step = append(p.ended, seq.step), nil
	}
	if seq.stale || seq.filled == 0 || len(p.groups) == 0 { // a TorchScript module caches nothing
		p.remove(seq)
	} else {
		p.trim(seq)
	}
}

// remove drops an idle cached sequence.
func (p *pages) remove(seq *cachedSeq) {
	p.freeState(seq)
	p.freeSnapshots(seq)
	p.each(seq, (*pool).drop)
	p.cached = slices.DeleteFunc(p.cached, func(other *cachedSeq) bool { return other == seq })
}

// forget drops the cached prefixes of an owner, after a change of its weights.
func (p *pages) forget(owner *Tenant) {
	for _, seq := range slices.Clone(p.cached) {
		switch {
		case seq.owner != owner:
		case seq.busy:
			seq.stale = true
			p.freeSnapshots(seq)
		default:
			p.remove(seq)
		}
	}
}

func (p *pages) each(seq *cachedSeq, do func(*pool, int32)) {
	for g, table := range seq.tables {
		for _, b := range table {
			if b != noBlock {
				do(p.pools[g], b)
			}
		}
	}
}

func commonPrefix(a, b []int32, limit int) int {
	n := min(len(a), len(b), limit)
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
