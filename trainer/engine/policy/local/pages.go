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
// blocks of a common prefix, and copy the block in which they part. Sequences of different tenants share no blocks,
// since keys and values depend on adapters, but use one pool of blocks. pages computes no tensors.
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

// find returns the longest reusable prefix of an owner's sequence. soon is true if a cached sequence in flight will have
// a longer one: waiting is then cheaper than computing the prefix twice (K rollouts of a prompt). For a model with
// recurrent states, find also requests a snapshot of a cached sequence in flight at the first token that differs.
func (p *pages) find(owner *Tenant, tokens []int32) (best prefix, soon bool) {
	usable, promised := len(tokens)-1, 0 // the last token must run through the model, for its logits
	for _, l := range p.cached {
		if n := best.reuse; !p.sharing || l.owner != owner || l.stale || n >= min(usable, len(l.tokens)) || l.tokens[n] != tokens[n] {
			continue // its common prefix is not longer
		}
		c := commonPrefix(l.tokens, tokens, usable)
		cached := min(c, l.filled)
		if p.states != nil {
			cached = l.resumable(l.filled, cached)
		}
		if cached > best.reuse && p.holds(l, cached) {
			best = prefix{l, cached}
		}
		if l.busy && c > l.filled && (p.states == nil || l.want(c)) {
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

// holds reports whether a sequence can continue after the first n tokens of a cached sequence,
// n ≥ 1. Layers with a window may have freed blocks that the next token attends to.
func (p *pages) holds(l *cachedSeq, n int) bool {
	for g, group := range p.groups {
		if i := firstSeen(group, n); i*arch.CacheBlock < n && l.tables[g][i] == noBlock {
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
	l, moves := from.from, []move(nil)
	again := p.states != nil && from.reuse == len(tokens)-1 // the state after a prompt remains for its other rollouts
	if l == nil || l.busy || l.filled > from.reuse || again || l.partlyShared(p.pools) {
		l, moves = p.fork(from)
		p.cached = append(p.cached, l)
	} else { // the next turn of a conversation
		p.each(l, (*pool).hold)
	}
	if l.wanted, l.prompt = nil, len(tokens); p.states != nil && len(tokens)-1 > l.filled {
		l.want(len(tokens) - 1) // where other rollouts of the prompt can continue
	}
	p.clock++
	l.owner, l.tokens, l.busy, l.lastUse = owner, append(l.tokens[:0], tokens...), true, p.clock
	return l, moves
}

// partlyShared reports whether the sequence's last block has room, and other cached sequences own it, too. They were forked at a
// later snapshot, which has since been given up.
func (l *cachedSeq) partlyShared(pools []*pool) bool {
	if l.filled%arch.CacheBlock == 0 {
		return false
	}
	for g, table := range l.tables {
		if b := table[l.filled/arch.CacheBlock]; b != noBlock && pools[g].owners[b] > 1 {
			return true
		}
	}
	return false
}

// fork makes a cached sequence in flight with a prefix of another one.
func (p *pages) fork(from prefix) (l *cachedSeq, moves []move) {
	l = &cachedSeq{tables: make([][]int32, len(p.groups)), busy: true, recurrence: recurrence{state: noState}}
	moves = p.begin(l, from) // first: blocks may be taken from the prefix's own cached sequence, and then its states are freed
	if from.from != nil {
		moves = append(moves, p.forkBlocks(l, from)...)
	}
	return l, moves
}

// forkBlocks gives a new cached sequence the blocks of a prefix.
func (p *pages) forkBlocks(l *cachedSeq, from prefix) (moves []move) {
	whole := from.reuse / arch.CacheBlock
	l.routes = slices.Clone(from.from.routes[:from.reuse*p.width])
	for g := range p.groups {
		l.tables[g] = slices.Clone(from.from.tables[g][:whole])
		for _, b := range l.tables[g] {
			if b != noBlock {
				p.pools[g].own(b)
				p.pools[g].hold(b)
			}
		}
	}
	l.filled = whole * arch.CacheBlock
	if from.reuse == l.filled {
		return nil
	}
	var parted []int32
	for g := range p.groups {
		parted = append(parted, from.from.tables[g][whole])
	}
	if !p.extend(l, from.reuse) { // there is no block to copy to; these few tokens are computed again
		if p.states != nil { // the state is that of all tokens
			p.each(l, (*pool).release)
			p.each(l, (*pool).drop)
			l.tables, l.filled = make([][]int32, len(p.groups)), 0
		}
		l.routes = l.routes[:l.filled*p.width]
		return nil
	}
	l.filled = from.reuse
	for g, b := range parted {
		moves = append(moves, move{group: g, from: b, to: l.tables[g][whole]})
	}
	return moves
}

// extend gives a cached sequence in flight blocks for its first n tokens. It returns false if other cached sequences in
// flight have them all. Idle cached sequences give up as many as are needed.
func (p *pages) extend(l *cachedSeq, n int) bool {
	for g, pool := range p.pools {
		for len(l.tables[g]) < arch.CacheBlocks(n) {
			for len(pool.free) == 0 {
				if !p.giveUp() {
					return false
				}
			}
			b := pool.take()
			pool.own(b)
			pool.hold(b)
			l.tables[g] = append(l.tables[g], b)
		}
	}
	return true
}

// giveUp takes the last block from the least recently used idle cached sequence. It returns false if no cached sequence
// is idle.
func (p *pages) giveUp() bool {
	var oldest *cachedSeq
	for _, l := range p.cached {
		if !l.busy && (oldest == nil || l.lastUse < oldest.lastUse) {
			oldest = l
		}
	}
	if oldest == nil {
		return false
	}
	p.shorten(oldest, (oldest.filled-1)/arch.CacheBlock*arch.CacheBlock)
	return true
}

// shorten keeps the first n tokens of an idle cached sequence, or drops the cached sequence if no sequence can continue
// after them.
func (p *pages) shorten(l *cachedSeq, n int) {
	if p.states != nil {
		n = l.resumable(l.filled, n)
	}
	if n > 0 && !p.holds(l, n) {
		n = 0
	}
	if p.states != nil && n > 0 {
		p.keepUntil(l, n)
	}
	l.owner.stats.EvictedTokens += int64(l.filled - n)
	l.filled, l.tokens, l.routes = n, l.tokens[:n], l.routes[:n*p.width]
	if n == 0 {
		p.remove(l)
	} else {
		p.trim(l)
	}
}

// trim drops an idle cached sequence's blocks after its cached tokens.
func (p *pages) trim(l *cachedSeq) {
	for g, table := range l.tables {
		keep := arch.CacheBlocks(l.filled)
		for _, b := range table[min(keep, len(table)):] {
			if b != noBlock {
				p.pools[g].drop(b)
			}
		}
		l.tables[g] = table[:min(keep, len(table))]
	}
}

// fill records that a cached sequence in flight has the keys and values of n tokens. It drops blocks that no window will
// reach again, but keeps those that the n-th token attends to, for sequences that end or part there.
func (p *pages) fill(l *cachedSeq, n int) {
	l.filled = n
	p.snap(l)
	for g, group := range p.groups {
		table := l.tables[g]
		for i := firstSeen(group, n-1) - 1; i >= 0 && table[i] != noBlock; i-- {
			p.pools[g].release(table[i])
			p.pools[g].drop(table[i])
			table[i] = noBlock
		}
	}
}

// close ends a cached sequence's flight. Its prefix remains reusable until the cached sequence becomes stale or gives it up.
func (p *pages) close(l *cachedSeq) {
	p.each(l, (*pool).release)
	p.clock++
	l.busy, l.lastUse, l.tokens = false, p.clock, l.tokens[:l.filled]
	if l.step != nil {
		p.ended, l.step = append(p.ended, l.step), nil
	}
	if l.stale || l.filled == 0 || len(p.groups) == 0 { // a TorchScript module caches nothing
		p.remove(l)
	} else {
		p.trim(l)
	}
}

// remove drops an idle cached sequence.
func (p *pages) remove(l *cachedSeq) {
	p.freeState(l)
	p.freeSnapshots(l)
	p.each(l, (*pool).drop)
	p.cached = slices.DeleteFunc(p.cached, func(other *cachedSeq) bool { return other == l })
}

// forget drops the cached prefixes of an owner, after a change of its weights.
func (p *pages) forget(owner *Tenant) {
	for _, l := range slices.Clone(p.cached) {
		switch {
		case l.owner != owner:
		case l.busy:
			l.stale = true
			p.freeSnapshots(l)
		default:
			p.remove(l)
		}
	}
}

func (p *pages) each(l *cachedSeq, do func(*pool, int32)) {
	for g, table := range l.tables {
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
