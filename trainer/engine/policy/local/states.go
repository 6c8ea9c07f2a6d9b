package local

import "slices"

// snapshot is a recurrent state after the first `at` tokens of a line, which no pass changes.
type snapshot struct {
	at      int
	number  int32
	lastUse int64
}

// recurrence is the recurrent part of a line, for models that have one: a sequence can continue only after a token whose state is kept.
type recurrence struct {
	state     int32      // number of the state after the filled tokens, which passes advance; noState if it was given up
	snapshots []snapshot // in the order of `at`
	cuts      []int      // numbers of tokens, beyond the filled ones, after which a snapshot will be taken, in order
}

const noState = -1

// maxCuts bounds the snapshots that others may want of a line in flight.
const maxCuts = 8

// states assigns recurrent states to lines. A state that no line in flight advances can be given up, the least recently used first.
type states struct{ free []int32 }

func newStates(n int) *states {
	s := &states{}
	for i := n - 1; i >= 0; i-- {
		s.free = append(s.free, int32(i))
	}
	return s
}

// resumable returns the largest number of tokens, at most n, after which the line's state is kept.
func (r *recurrence) resumable(filled, n int) int {
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

// cutAt asks for a snapshot after n tokens. It reports whether there will be one.
func (r *recurrence) cutAt(n int) bool {
	i, found := slices.BinarySearch(r.cuts, n)
	switch {
	case found:
		return true
	case len(r.cuts) >= maxCuts:
		return false
	}
	r.cuts = slices.Insert(r.cuts, i, n)
	return true
}

// reach returns how many of the next n tokens a pass may compute, so that it ends at the next cut.
func (r *recurrence) reach(filled, n int) int {
	if len(r.cuts) > 0 {
		return min(n, r.cuts[0]-filled)
	}
	return n
}

// takeState returns a state that no line has. It may be taken from a snapshot or from an idle line, but not the state `but`.
func (p *pages) takeState(but int32) int32 {
	if len(p.states.free) == 0 {
		p.giveUpState(but)
	}
	last := len(p.states.free) - 1
	if last < 0 {
		panic("policy: more sequences in flight than recurrent states")
	}
	n := p.states.free[last]
	p.states.free = p.states.free[:last]
	return n
}

// giveUpState frees the least recently used state of a snapshot or of an idle line.
func (p *pages) giveUpState(but int32) {
	var of *line
	at, oldest := 0, int64(0)
	consider := func(l *line, i int, number int32, lastUse int64) {
		if number != but && number != noState && (of == nil || lastUse < oldest) {
			of, at, oldest = l, i, lastUse
		}
	}
	for _, l := range p.lines {
		for i, s := range l.snapshots {
			consider(l, i, s.number, s.lastUse)
		}
		if !l.busy {
			consider(l, len(l.snapshots), l.state, l.lastUse)
		}
	}
	switch {
	case of == nil:
	case at < len(of.snapshots):
		p.states.free = append(p.states.free, of.snapshots[at].number)
		of.snapshots = slices.Delete(of.snapshots, at, at+1)
	default:
		p.shorten(of, of.filled-1)
	}
}

// keepUntil makes the state after the first n tokens of an idle line its own, and frees the states after later ones. n is 0 or resumable.
func (p *pages) keepUntil(l *line, n int) {
	if p.states == nil || n == l.filled && l.state != noState {
		return
	}
	if l.state != noState {
		p.states.free = append(p.states.free, l.state)
	}
	l.state = noState
	for len(l.snapshots) > 0 {
		last := l.snapshots[len(l.snapshots)-1]
		if last.at < n {
			break
		}
		l.snapshots = l.snapshots[:len(l.snapshots)-1]
		if last.at == n {
			l.state = last.number
			break
		}
		p.states.free = append(p.states.free, last.number)
	}
}

// begin gives a new line a state, which continues that after the first `reuse` tokens of another line. At 0 passes begin with zeros.
func (p *pages) begin(l *line, from prefix) (moves []move) {
	if p.states == nil {
		return nil
	}
	source := int32(noState)
	if f := from.from; f != nil {
		source = f.state
		if i := slices.IndexFunc(f.snapshots, func(s snapshot) bool { return s.at == from.reuse }); i >= 0 {
			source, f.snapshots[i].lastUse = f.snapshots[i].number, p.clock+1
		}
	}
	if l.state = p.takeState(source); source != noState {
		moves = append(moves, move{group: stateGroup, from: source, to: l.state})
	}
	return moves
}

// snap takes a snapshot of a line in flight whose filled tokens have reached a cut.
func (p *pages) snap(l *line) {
	for len(l.cuts) > 0 && l.cuts[0] <= l.filled {
		at := l.cuts[0]
		if l.cuts = l.cuts[1:]; at < l.filled || slices.ContainsFunc(l.snapshots, func(s snapshot) bool { return s.at == at }) {
			continue
		}
		p.clock++
		s := snapshot{at: at, number: p.takeState(l.state), lastUse: p.clock}
		p.pending = append(p.pending, move{group: stateGroup, from: l.state, to: s.number})
		l.snapshots = append(l.snapshots, s)
	}
}
