package local

import "slices"

// snapshot is a copy of the recurrent state after the first `at` tokens of a cached sequence. No pass changes it.
type snapshot struct {
	at      int
	number  int32
	lastUse int64
}

// recurrence is the recurrent part of a cached sequence, for models that have one: a sequence can continue only after a
// token whose state is kept.
type recurrence struct {
	state     int32      // number of the state after the filled tokens, which passes advance; noState if it was given up
	snapshots []snapshot // in the order of `at`
	wanted    []int      // numbers of tokens, beyond the filled ones, after which a snapshot will be taken, in order
	prompt    int        // number of tokens of the prompt: no snapshot is taken after later ones
}

const noState = -1

// maxWanted is the largest number of pending snapshots of a cached sequence in flight.
const maxWanted = 8

// states assigns recurrent states to cached sequences. A state that no cached sequence in flight advances can be given
// up, the least recently used first.
type states struct {
	count int
	free  []int32
}

func newStates(n int) *states {
	s := &states{count: n}
	for i := n - 1; i >= 0; i-- {
		s.free = append(s.free, int32(i))
	}
	return s
}

// longestResumable returns the largest number of tokens, at most n, after which the cached sequence's state is kept.
func (r *recurrence) longestResumable(filled, n int) int {
	if r.state != noState && filled <= n {
		return filled
	}
	for _, s := range slices.Backward(r.snapshots) {
		if s.at <= n {
			return s.at
		}
	}
	return 0
}

// requestSnapshot requests a snapshot after n tokens. It reports whether there will be one.
func (r *recurrence) requestSnapshot(n int) bool {
	i, found := slices.BinarySearch(r.wanted, n)
	switch {
	case found:
		return true
	case n >= r.prompt || len(r.wanted) >= maxWanted:
		return false
	}
	r.wanted = slices.Insert(r.wanted, i, n)
	return true
}

// tokensToSnapshot returns the number of tokens, at most n, up to the next wanted snapshot.
func (r *recurrence) tokensToSnapshot(filled, n int) int {
	if len(r.wanted) > 0 {
		return min(n, r.wanted[0]-filled)
	}
	return n
}

// takeState returns a state that no cached sequence has. It may be taken from a snapshot or from an idle cached sequence,
// but not the state `except`.
func (p *pages) takeState(except int32) int32 {
	if len(p.states.free) == 0 {
		p.evictState(except)
	}
	last := len(p.states.free) - 1
	if last < 0 {
		panic("policy: more sequences in flight than recurrent states")
	}
	n := p.states.free[last]
	p.states.free = p.states.free[:last]
	return n
}

// evictState frees the least recently used state of a snapshot or of an idle cached sequence.
func (p *pages) evictState(except int32) {
	var of *cachedSeq
	at, oldest := 0, int64(0)
	consider := func(seq *cachedSeq, i int, number int32, lastUse int64) {
		if number != except && number != noState && (of == nil || lastUse < oldest) {
			of, at, oldest = seq, i, lastUse
		}
	}
	for _, seq := range p.cached {
		for i, s := range seq.snapshots {
			consider(seq, i, s.number, s.lastUse)
		}
		if !seq.busy {
			consider(seq, len(seq.snapshots), seq.state, seq.lastUse)
		}
	}
	switch {
	case of == nil:
	case at < len(of.snapshots):
		p.states.free = append(p.states.free, of.snapshots[at].number)
		of.snapshots = slices.Delete(of.snapshots, at, at+1)
	default:
		p.truncate(of, of.filled-1)
	}
}

// keepUntil makes the snapshot after the first n tokens of an idle cached sequence its current state, and frees the states
// after later tokens. n must be resumable.
func (p *pages) keepUntil(seq *cachedSeq, n int) {
	if n == seq.filled && seq.state != noState {
		return
	}
	p.freeState(seq)
	for last := len(seq.snapshots) - 1; last >= 0 && seq.snapshots[last].at >= n; last-- {
		s := seq.snapshots[last]
		seq.snapshots = seq.snapshots[:last]
		if s.at == n {
			seq.state, seq.lastUse = s.number, max(seq.lastUse, s.lastUse)
			return
		}
		p.states.free = append(p.states.free, s.number)
	}
}

// freeState frees the state that a cached sequence's passes advance.
func (p *pages) freeState(seq *cachedSeq) {
	if seq.state != noState {
		p.states.free = append(p.states.free, seq.state)
	}
	seq.state = noState
}

// freeSnapshots frees a cached sequence's snapshots. No more are taken.
func (p *pages) freeSnapshots(seq *cachedSeq) {
	for _, s := range seq.snapshots {
		p.states.free = append(p.states.free, s.number)
	}
	seq.snapshots, seq.wanted, seq.prompt = nil, nil, 0
}

// begin gives a new cached sequence a state: a copy of the state after the prefix, or any state if there is no prefix,
// which the pass at position 0 overwrites.
func (p *pages) begin(seq *cachedSeq, from prefix) (moves []move) {
	if p.states == nil {
		return nil
	}
	source := int32(noState)
	if f := from.from; f != nil {
		if f.filled == from.reuse {
			source, f.lastUse = f.state, p.clock+1
		}
		if i := slices.IndexFunc(f.snapshots, func(s snapshot) bool { return s.at == from.reuse }); i >= 0 {
			source, f.snapshots[i].lastUse = f.snapshots[i].number, p.clock+1
		}
		if source == noState {
			panic("policy: a prefix without a recurrent state")
		}
	}
	if seq.state = p.takeState(source); source != noState {
		moves = append(moves, move{group: stateGroup, from: source, to: seq.state})
	}
	return moves
}

// takeSnapshot takes a snapshot of a cached sequence in flight if one is wanted after its filled tokens.
func (p *pages) takeSnapshot(seq *cachedSeq) {
	for len(seq.wanted) > 0 && seq.wanted[0] <= seq.filled {
		at := seq.wanted[0]
		if seq.wanted = seq.wanted[1:]; at < seq.filled || slices.ContainsFunc(seq.snapshots, func(s snapshot) bool { return s.at == at }) {
			continue
		}
		p.clock++
		s := snapshot{at: at, number: p.takeState(seq.state), lastUse: p.clock}
		p.pending = append(p.pending, move{group: stateGroup, from: seq.state, to: s.number})
		seq.snapshots = append(seq.snapshots, s)
	}
}
