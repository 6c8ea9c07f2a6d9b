package local

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// contents records the tokens from which each recurrent state, and each key and value in a block, is computed.
type contents struct {
	t      *testing.T
	p      *pages
	of     map[int32][]int32
	blocks map[blockOf][arch.CacheBlock]uint64 // hashes of prefixes
}

type blockOf struct {
	group int
	block int32
}

func contentsOf(t *testing.T, opt Options) *contents {
	c := arch.Config{Family: arch.Qwen35, Layers: 2, KVHeads: 1, HeadDim: 8,
		GatedDelta: &arch.GatedDelta{Layers: []bool{true, false}, KeyHeads: 1, ValueHeads: 1, KeyDim: 8, ValueDim: 8, Width: 4}}
	return &contents{t, newPages(&c, opt), map[int32][]int32{}, map[blockOf][arch.CacheBlock]uint64{}}
}

func (c *contents) move(moves []move) {
	for _, m := range append(c.p.pending, moves...) {
		if m.group == stateGroup {
			c.of[m.to] = c.of[m.from]
		} else {
			c.blocks[blockOf{m.group, m.to}] = c.blocks[blockOf{m.group, m.from}]
		}
	}
	c.p.pending = nil
}

// prefixes returns a hash of the first n tokens for each n.
func prefixes(tokens []int32) []uint64 {
	h, out := fnv.New64a(), []uint64{0}
	for _, t := range tokens {
		binary.Write(h, binary.LittleEndian, t)
		out = append(out, h.Sum64())
	}
	return out
}

// check compares the cached keys and values of a sequence with its tokens.
func (c *contents) check(seq *cachedSeq) {
	c.t.Helper()
	want := prefixes(seq.tokens[:seq.filled])
	for g, table := range seq.tables {
		for at := range seq.filled {
			if b := table[at/arch.CacheBlock]; b != noBlock && c.blocks[blockOf{g, b}][at%arch.CacheBlock] != want[at+1] {
				c.t.Fatalf("the key and the value of token %d of %d are another sequence's", at, seq.filled)
			}
		}
	}
}

// write records the keys and values of the tokens from seq.filled on.
func (c *contents) write(seq *cachedSeq, filled int) {
	of := prefixes(seq.tokens[:filled])
	for g, table := range seq.tables {
		for at := seq.filled; at < filled; at++ {
			if key := (blockOf{g, table[at/arch.CacheBlock]}); key.block != noBlock {
				content := c.blocks[key]
				content[at%arch.CacheBlock] = of[at+1]
				c.blocks[key] = content
			}
		}
	}
}

// open begins a sequence and checks the state that it begins with. It returns nil if the sequence has to wait for a prefix.
func (c *contents) open(owner *Tenant, tokens []int32) *cachedSeq {
	c.t.Helper()
	from, soon := c.p.find(owner, tokens)
	if soon {
		return nil
	}
	seq, moves := c.p.open(owner, tokens, from)
	c.move(moves)
	if seq.filled > 0 && !slices.Equal(c.of[seq.state], tokens[:seq.filled]) {
		c.t.Fatalf("a sequence begins after %d tokens with the state after %d (it reuses %d)", seq.filled, len(c.of[seq.state]), from.reuse)
	}
	c.check(seq)
	return seq
}

// pass computes the cached sequence's next tokens, at most rows of them.
func (c *contents) pass(seq *cachedSeq, rows int) {
	c.t.Helper()
	filled := seq.filled + seq.tokensToSnapshot(seq.filled, min(rows, len(seq.tokens)-seq.filled))
	if !c.p.extend(seq, filled) {
		c.t.Fatal("no block is free")
	}
	c.move(nil)
	if seq.filled > 0 && !slices.Equal(c.of[seq.state], seq.tokens[:seq.filled]) {
		c.t.Fatalf("a pass continues after %d tokens with the state after %d", seq.filled, len(c.of[seq.state]))
	}
	c.check(seq)
	c.write(seq, filled)
	c.of[seq.state] = slices.Clone(seq.tokens[:filled])
	c.p.fill(seq, filled)
}

// play computes a sequence from its prompt up to a length of n tokens, and ends it.
func (c *contents) play(owner *Tenant, tokens []int32, n int) {
	c.t.Helper()
	seq := c.open(owner, tokens)
	for seq.filled < n-1 {
		c.pass(seq, n)
		if seq.filled == len(seq.tokens) && len(seq.tokens) < n {
			seq.tokens = append(seq.tokens, 1000+int32(len(seq.tokens)))
		}
	}
	c.move(nil)
	c.p.close(seq)
}

// TestForkFromACachedSequenceThatGivesUpItsBlock: a fork needs a block, and the only idle cached sequence that can give
// one up, with its states, is the cached sequence that it forks from. The fork begins with the right state nevertheless.
func TestForkFromACachedSequenceThatGivesUpItsBlock(t *testing.T) {
	at, owner := contentsOf(t, Options{Slots: 1, Conversations: 3, PassRows: 64, CacheTokens: 2 * arch.CacheBlock}), &Tenant{}
	history := make([]int32, 36)
	for i := range history {
		history[i] = int32(i)
		if i >= 21 && i < 30 {
			history[i] = 1000 + int32(i) // tokens that the first turn samples
		}
	}
	at.play(owner, history[:21], 30) // snapshot after 20 tokens
	at.play(owner, history, 41)      // the next turn: snapshot after 35
	at.play(owner, history, 41)      // another rollout of that turn
}

// TestPartOfASharedBlockIsCopied: a sequence ends within a block that it shares with the conversation of another rollout, because it lost
// its later snapshot and its end state. The sequence that continues it does not write into the conversation's block.
func TestPartOfASharedBlockIsCopied(t *testing.T) {
	at, owner := contentsOf(t, Options{Slots: 2, Conversations: 3, PassRows: 64, CacheTokens: 64 * arch.CacheBlock}), &Tenant{}
	prompt := func(query int32) (tokens []int32) { // the first 40 tokens are those of every query
		for i := range int32(80) {
			if tokens = append(tokens, i); i >= 40 {
				tokens[i] += 1000 * query
			}
		}
		return tokens
	}
	first := at.open(owner, prompt(1))
	if at.open(owner, prompt(2)) != nil {
		t.Fatal("the second query does not wait for the common prefix")
	}
	for first.filled < 79 {
		at.pass(first, 64)
	}
	second := at.open(owner, prompt(1))
	if second.filled != 79 {
		t.Fatalf("the second rollout begins after %d tokens, want 79", second.filled)
	}
	at.pass(first, 1)
	at.pass(second, 1)
	at.move(nil)
	at.p.close(second) // its turn ends
	at.p.close(first)
	conversation := slices.Clone(second.tokens)
	for query := int32(2); query < 12; query++ { // other queries take the states of the first sequence
		at.play(owner, prompt(query), 84)
		conversation = append(conversation, 20000+query)
		next := at.open(owner, conversation)
		for next.filled < len(next.tokens) {
			at.pass(next, 64)
		}
		at.move(nil)
		at.p.close(next)
	}
}

// TestStatesHoldTheirTokens: in random orders of forks, waits, ends, and lost blocks and
// states, each sequence continues with the state of its own tokens.
func TestStatesHoldTheirTokens(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		slots := 1 + rng.IntN(3)
		opt := Options{Slots: slots, Conversations: rng.IntN(6), PassRows: 16, CacheTokens: (4*slots + rng.IntN(9)) * arch.CacheBlock}
		at := contentsOf(t, opt)
		owner := &Tenant{}
		histories := [][]int32{{1}, {1, 2}, {3}}
		var flying []*cachedSeq
		for range 400 {
			switch k := rng.IntN(10); {
			case len(flying) < slots && k < 4: // a new turn that continues a history from some token
				tokens := slices.Clone(histories[rng.IntN(len(histories))])
				tokens = tokens[:1+rng.IntN(len(tokens))]
				for range 1 + rng.IntN(20) {
					tokens = append(tokens, rng.Int32N(3))
				}
				if seq := at.open(owner, tokens); seq != nil {
					flying = append(flying, seq)
				}
			case len(flying) > 0 && k < 9:
				seq := flying[rng.IntN(len(flying))]
				if len(seq.tokens) < 90 && seq.filled == len(seq.tokens)-1 || seq.filled == len(seq.tokens) {
					seq.tokens = append(seq.tokens, rng.Int32N(3))
				}
				at.pass(seq, 1+rng.IntN(16))
			case len(flying) > 0:
				i := rng.IntN(len(flying))
				histories = append(histories, slices.Clone(flying[i].tokens))
				at.move(nil)
				at.p.close(flying[i])
				flying = slices.Delete(flying, i, i+1)
			}
		}
		for _, seq := range flying {
			at.p.close(seq)
		}
		at.p.verify(t)
		at.p.verifyStates(t, arch.RecurrentStates(slots, opt.Conversations))
	}
}

// TestUsedSnapshotStays: a snapshot that a sequence has just continued from is kept longer than
// states that were used before it. This also holds if its cached sequence has given up the
// state at its end. Each further rollout of the prompt continues from it.
func TestUsedSnapshotStays(t *testing.T) {
	at, owner := contentsOf(t, Options{Slots: 1, Conversations: 3, PassRows: 64, CacheTokens: 32 * arch.CacheBlock}), &Tenant{}
	prompt := func(first int32) (tokens []int32) {
		for i := range int32(10) {
			tokens = append(tokens, 100*first+i)
		}
		return tokens
	}
	for _, first := range []int32{1, 2, 1, 3} { // a new prompt takes two of the four states, and the second rollout of prompt 1 takes one
		at.play(owner, prompt(first), 11)
	}
	for range 3 {
		seq := at.open(owner, prompt(1))
		if seq.filled != 9 {
			t.Errorf("another rollout of prompt 1 begins after %d tokens, want 9", seq.filled)
		}
		at.pass(seq, 1)
		at.p.close(seq)
	}
}
