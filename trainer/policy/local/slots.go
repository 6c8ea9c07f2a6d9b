package local

// slot is one row of the key-value cache and the tokens whose keys and values it holds.
type slot struct {
	tokens  []int32 // the sequence placed here; keys and values of the first `filled` are in the cache
	filled  int
	busy    bool
	stale   bool  // the weights changed while it was busy: nobody else may reuse what it holds
	lastUse int64 // admission counter, for eviction of the least recently used
}

// slots decides where a sequence goes and what it may reuse. It is plain bookkeeping: no tensors.
type slots struct {
	all     []slot
	clock   int64
	sharing bool // reuse of cached prefixes; off only to show that results do not depend on it
}

// placement says where a sequence was put: its first `reuse` tokens are to be copied from slot `from`
// (from == slot: they are there already).
type placement struct{ slot, from, reuse int }

// place finds a slot for a sequence. ok is false when none is free, or when a sequence being prefilled
// now will soon hold a longer common prefix than any slot does: then waiting is cheaper than computing
// the prefix twice (K rollouts of one prompt).
func (s *slots) place(tokens []int32) (p placement, ok bool) {
	usable := len(tokens) - 1 // the last token must run through the model: its logits are wanted
	best, reuse, promised := -1, 0, 0
	for i := range s.all {
		if !s.sharing || s.all[i].stale {
			continue
		}
		c := commonPrefix(s.all[i].tokens, tokens, usable)
		if held := min(c, s.all[i].filled); held > reuse {
			best, reuse = i, held
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
	s.all[target] = slot{tokens: append([]int32(nil), tokens...), filled: reuse, busy: true, lastUse: s.clock}
	return placement{slot: target, from: from, reuse: reuse}, true
}

// target is the idle slot to use: the one holding the prefix if the sequence continues all of it
// (the next turn of a conversation), else the least recently used.
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

// release makes a slot available again; what it holds stays reusable until it is evicted or stale.
func (s *slots) release(i int) {
	if s.all[i].stale {
		s.all[i] = slot{}
		return
	}
	s.all[i].busy = false
	s.all[i].tokens = s.all[i].tokens[:s.all[i].filled]
}

// forget drops everything cached, as after a change of the weights.
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
