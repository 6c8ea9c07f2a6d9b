package local

import "slices"

// slot is a slot of the key-value cache and its sequence.
type slot struct {
	tokens  []int32 // the sequence placed here; keys and values of the first `filled` are in the cache
	filled  int
	routes  []uint16 // experts of the first `filled` tokens
	busy    bool
	stale   bool  // the weights changed while the slot was busy: its keys and values must not be reused
	lastUse int64 // admission counter, for eviction of the least recently used
}

// slots assigns sequences to slots and finds reusable prefixes. It has no tensors.
type slots struct {
	all     []slot
	clock   int64
	width   int  // experts of a token
	sharing bool // reuse cached prefixes; tests turn it off to show that results do not depend on it
}

// placement is the slot of a sequence. The keys and values of its first `reuse` tokens must be copied from slot `from`,
// or are in place if from == slot.
type placement struct{ slot, from, reuse int }

// place finds a slot for a sequence. ok is false if no slot is free. ok is also false if a sequence being prefilled will
// soon have a longer common prefix than any slot: waiting is then cheaper than computing the prefix twice (K rollouts of
// a prompt).
func (s *slots) place(tokens []int32) (p placement, ok bool) {
	usable := len(tokens) - 1 // the last token must run through the model, for its logits
	best, reuse, promised := -1, 0, 0
	for i := range s.all {
		if !s.sharing || s.all[i].stale {
			continue
		}
		c := commonPrefix(s.all[i].tokens, tokens, usable)
		if cached := min(c, s.all[i].filled); cached > reuse {
			best, reuse = i, cached
		}
		if s.all[i].busy && c > promised {
			promised = c
		}
	}
	if promised > reuse {
		return placement{}, false
	}
	target := s.target(best, reuse)
	if target < 0 {
		return placement{}, false
	}
	from := best
	if best < 0 {
		from = target
	}
	s.clock++
	s.all[target] = slot{tokens: append([]int32(nil), tokens...), filled: reuse, busy: true, lastUse: s.clock,
		routes: slices.Clone(s.all[from].routes[:reuse*s.width])}
	return placement{slot: target, from: from, reuse: reuse}, true
}

// target returns the idle slot to use: the slot with the prefix if the sequence continues all of it (the next turn of a
// conversation), else the least recently used slot.
func (s *slots) target(best, reuse int) int {
	if best >= 0 && !s.all[best].busy && s.all[best].filled == reuse {
		return best
	}
	target := -1
	for i := range s.all {
		if s.all[i].busy || (i == best && s.idle() > 1) {
			continue
		}
		if target < 0 || s.all[i].lastUse < s.all[target].lastUse {
			target = i
		}
	}
	return target
}

func (s *slots) idle() (n int) {
	for i := range s.all {
		if !s.all[i].busy {
			n++
		}
	}
	return n
}

// release makes a slot available again. Its prefix stays reusable until the slot is evicted or stale.
func (s *slots) release(i int) {
	if s.all[i].stale {
		s.all[i] = slot{}
		return
	}
	s.all[i].busy = false
	s.all[i].tokens = s.all[i].tokens[:s.all[i].filled]
}

// forget drops all cached prefixes, after a change of the weights.
func (s *slots) forget() {
	for i := range s.all {
		if s.all[i].busy {
			s.all[i].stale = true
		} else {
			s.all[i] = slot{}
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
