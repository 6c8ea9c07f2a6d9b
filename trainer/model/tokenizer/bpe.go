package tokenizer

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// bpe is byte-pair encoding. A piece starts with one symbol for each byte (byte-level) or each character. Then the
// neighbouring pair with the lowest rank is merged, the leftmost if ranks are equal, until no pair has a rank.
type bpe struct {
	pre     preTokenizer
	bytes   [256]symbol     // byte-level: the symbols of bytes
	runes   map[rune]symbol // otherwise: the symbols of the vocabulary's characters
	absent  func(r rune) symbol
	merges  map[uint64]merge // by the ids of the pair
	whole   map[string]int32 // ignore_merges: pieces that are tokens without merging
	fuseUnk bool
	words   string // a character before which a piece can be cut without changing its ids, "" for none
	cache   *pieceCache
}

// symbol is the start of a byte or character: token ids, or the unknown token, or nothing if there is no unknown token.
type symbol struct {
	ids []int32
	unk bool
}

type merge struct {
	rank uint32 // lower ranks merge first
	id   int32  // of the merged token
}

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

func newBPE(s *spec, pre preTokenizer) (*bpe, error) {
	o, err := bpeOptions(s.options)
	if err != nil {
		return nil, err
	}
	m := &bpe{pre: pre, fuseUnk: o.fuseUnk, cache: newPieceCache()}
	if err := m.setMerges(s); err != nil {
		return nil, err
	}
	if err := m.setSymbols(s.vocab, o); err != nil {
		return nil, err
	}
	if o.ignoreMerges {
		m.whole = map[string]int32{}
		for text, id := range s.vocab {
			piece, ok := text, true
			if pre.byteLevel {
				piece, ok = byteLevelBytes(text)
			}
			if ok && piece != "" {
				m.whole[piece] = id
			}
		}
	}
	if !pre.byteLevel && !o.ignoreMerges && m.separates(s, metaspaceMark) {
		m.words = metaspaceMark
	}
	return m, nil
}

// metaspaceMark stands for a space in vocabularies of the SentencePiece kind.
const metaspaceMark = "▁"

// separates reports whether no merge joins a text to a mark that follows it, unless the text ends in a mark. A piece can
// then be cut before each mark that follows another character, without changing the ids. The parts are cached as words are.
func (m *bpe) separates(s *spec, mark string) bool {
	if _, ok := s.vocab[mark]; !ok {
		return false
	}
	for _, pair := range s.merges {
		if strings.HasPrefix(pair[1], mark) && !strings.HasSuffix(pair[0], mark) {
			return false
		}
	}
	return true
}

func (m *bpe) setSymbols(vocab map[string]int32, o bpeSettings) error {
	unk := NoID
	if o.unk != "" {
		id, ok := vocab[o.unk]
		if !ok {
			return fmt.Errorf("unk_token %q is not in the vocabulary", o.unk)
		}
		unk = id
	}
	var fallback map[byte]int32
	if o.byteFallback {
		fallback = byteTokens(vocab)
	}
	m.absent = func(r rune) symbol { return absentSymbol(string(r), fallback, unk) }
	if m.pre.byteLevel {
		for b := range m.bytes {
			text := string(byteRune[b])
			if id, ok := vocab[text]; ok {
				m.bytes[b] = symbol{ids: []int32{id}}
				continue
			}
			m.bytes[b] = absentSymbol(text, fallback, unk)
		}
		return nil
	}
	m.runes = map[rune]symbol{}
	for text, id := range vocab {
		if r, n := utf8.DecodeRuneInString(text); n == len(text) && n > 0 {
			m.runes[r] = symbol{ids: []int32{id}}
		}
	}
	return nil
}

type bpeSettings struct {
	unk                                 string
	fuseUnk, byteFallback, ignoreMerges bool
}

func bpeOptions(options *ordered.Object) (s bpeSettings, err error) {
	flags := map[string]*bool{"fuse_unk": &s.fuseUnk, "byte_fallback": &s.byteFallback, "ignore_merges": &s.ignoreMerges}
	for _, key := range options.Keys() {
		v, _ := options.Get(key)
		ok := true
		switch key {
		case "type":
		case "dropout":
			if v != nil && v != 0.0 {
				return s, fmt.Errorf("dropout %v is not supported: equal texts must give equal ids", v)
			}
		case "continuing_subword_prefix", "end_of_word_suffix":
			if v != nil && v != "" {
				return s, fmt.Errorf("%s %q is not supported", key, v)
			}
		case "unk_token":
			if v != nil {
				s.unk, ok = v.(string)
			}
		default:
			flag := flags[key]
			if flag == nil {
				return s, fmt.Errorf("unknown key %q", key)
			}
			*flag, ok = v.(bool)
		}
		if !ok {
			return s, fmt.Errorf("%s has a value of type %s", key, ordered.TypeName(v))
		}
	}
	return s, nil
}

func (m *bpe) setMerges(s *spec) error {
	if s.merges == nil {
		return errors.New("merges is missing")
	}
	m.merges = make(map[uint64]merge, len(s.merges))
	for rank, pair := range s.merges {
		left, okLeft := s.vocab[pair[0]]
		right, okRight := s.vocab[pair[1]]
		id, ok := s.vocab[pair[0]+pair[1]]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("merge %d, %.60q + %.60q: a part or the result is not in the vocabulary", rank, pair[0], pair[1])
		}
		m.merges[pairKey(left, right)] = merge{uint32(rank), id}
	}
	return nil
}

// byteTokens returns the ids of the tokens <0x00> to <0xFF>.
func byteTokens(vocab map[string]int32) map[byte]int32 {
	ids := map[byte]int32{}
	for b := range 256 {
		if id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]; ok {
			ids[byte(b)] = id
		}
	}
	return ids
}

// absentSymbol returns the symbol of a character that is not in the vocabulary. With byte_fallback it consists of the
// tokens of the character's UTF-8 bytes, if the vocabulary has all of them. Otherwise it is the unknown token, or nothing
// if there is no unknown token.
func absentSymbol(text string, fallback map[byte]int32, unk int32) symbol {
	var ids []int32
	for i := range len(text) {
		if id, ok := fallback[text[i]]; ok {
			ids = append(ids, id)
		}
	}
	switch {
	case len(ids) == len(text):
		return symbol{ids: ids}
	case unk != NoID:
		return symbol{ids: []int32{unk}, unk: true}
	}
	return symbol{}
}

func (m *bpe) encode(ids []int32, f fragment) []int32 {
	preTokenize(m.pre.steps, f, func(piece string) {
		if m.words == "" {
			ids = m.encodePiece(ids, piece)
			return
		}
		for len(piece) > 0 {
			n := wordLength(piece, m.words)
			ids = m.encodePiece(ids, piece[:n])
			piece = piece[n:]
		}
	})
	return ids
}

// wordLength returns the first place at which s can be cut: before the first mark that is not at the start and does not
// follow another mark.
func wordLength(s, mark string) int {
	start := 0
	for strings.HasPrefix(s[start:], mark) {
		start += len(mark)
	}
	if i := strings.Index(s[start:], mark); i >= 0 {
		return start + i
	}
	return len(s)
}

func (m *bpe) encodePiece(ids []int32, piece string) []int32 {
	if id, ok := m.whole[piece]; ok {
		return append(ids, id)
	}
	if len(piece) == 1 && m.pre.byteLevel {
		return append(ids, m.bytes[piece[0]].ids...)
	}
	cached, slot := m.cache.get(piece)
	if cached != nil {
		return append(ids, cached...)
	}
	from := len(ids)
	ids = m.appendSymbols(ids, piece)
	var merged []int32
	if len(ids)-from <= scanLimit {
		merged = m.mergeShort(ids[from:])
	} else {
		merged = m.mergeLong(ids[from:])
	}
	m.cache.put(slot, piece, merged)
	return ids[:from+len(merged)]
}

// appendSymbols appends the symbols of a piece. With fuse_unk, neighbouring unknown characters become one token.
func (m *bpe) appendSymbols(ids []int32, piece string) []int32 {
	afterUnk := false
	add := func(s symbol) {
		if s.unk && afterUnk && m.fuseUnk {
			return
		}
		ids = append(ids, s.ids...)
		afterUnk = s.unk
	}
	if m.pre.byteLevel {
		for i := range len(piece) {
			add(m.bytes[piece[i]])
		}
		return ids
	}
	for _, r := range piece {
		s, ok := m.runes[r]
		if !ok {
			s = m.absent(r)
		}
		add(s)
	}
	return ids
}

// scanLimit is the largest number of symbols for which scanning all pairs is faster than a heap.
const scanLimit = 48

const noRank = ^uint32(0)

// mergeShort merges in place, in time quadratic in the number of symbols.
func (m *bpe) mergeShort(ids []int32) []int32 {
	var store [scanLimit]merge
	next := store[:len(ids)] // next[i]: the merge of ids[i] and ids[i+1]
	for i := range ids {
		next[i] = m.pair(ids, i)
	}
	for {
		best, at := noRank, 0
		for i := range ids {
			if next[i].rank < best {
				best, at = next[i].rank, i
			}
		}
		if best == noRank {
			return ids
		}
		ids[at] = next[at].id
		ids = append(ids[:at+1], ids[at+2:]...)
		next = append(next[:at+1], next[at+2:]...)
		next[at] = m.pair(ids, at)
		if at > 0 {
			next[at-1] = m.pair(ids, at-1)
		}
	}
}

func (m *bpe) pair(ids []int32, i int) merge {
	if i+1 < len(ids) {
		if found, ok := m.merges[pairKey(ids[i], ids[i+1])]; ok {
			return found
		}
	}
	return merge{rank: noRank}
}

// mergeLong merges in place with a heap of candidates over a linked list, in time n log n.
func (m *bpe) mergeLong(ids []int32) []int32 {
	n := int32(len(ids))
	before, after := make([]int32, n), make([]int32, n)
	for i := range n {
		before[i], after[i] = i-1, i+1
	}
	var queue candidates
	offer := func(i int32) {
		if j := after[i]; j < n {
			if found, ok := m.merges[pairKey(ids[i], ids[j])]; ok {
				queue.push(uint64(found.rank)<<32 | uint64(i))
			}
		}
	}
	for i := range n {
		offer(i)
	}
	const gone = int32(-1)
	for len(queue) > 0 {
		top := queue.pop()
		i := int32(uint32(top))
		j := after[i]
		if ids[i] == gone || j >= n {
			continue
		}
		found, ok := m.merges[pairKey(ids[i], ids[j])]
		if !ok || uint64(found.rank) != top>>32 {
			continue // a part of the pair has been merged with another neighbour
		}
		ids[i], ids[j] = found.id, gone
		after[i] = after[j]
		if after[i] < n {
			before[after[i]] = i
		}
		offer(i)
		if before[i] >= 0 {
			offer(before[i])
		}
	}
	kept := ids[:0]
	for i := int32(0); i < n; i = after[i] {
		kept = append(kept, ids[i])
	}
	return kept
}

// candidates is a binary min-heap of rank<<32|position: lowest rank first, then leftmost.
type candidates []uint64

func (q *candidates) push(v uint64) {
	h := append(*q, v)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent] <= v {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = v
	*q = h
}

func (q *candidates) pop() uint64 {
	h := *q
	top, v := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	for i := 0; len(h) > 0; {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if child >= len(h) || v <= h[child] {
			h[i] = v
			break
		}
		h[i] = h[child]
		i = child
	}
	return top
}

// pieceCache caches the ids of pieces. It has a fixed size and is direct-mapped: a new piece replaces the piece with the
// same hash. It is safe for concurrent use.
type pieceCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedPiece]
}

type cachedPiece struct {
	piece string
	ids   []int32
}

const (
	cacheSlots    = 1 << 15
	maxCachedSize = 64 // bytes of a piece
)

func newPieceCache() *pieceCache {
	return &pieceCache{maphash.MakeSeed(), make([]atomic.Pointer[cachedPiece], cacheSlots)}
}

// get returns a piece's ids, or nil if they are not cached, and the slot for them, or nil if the piece is too long.
func (c *pieceCache) get(piece string) ([]int32, *atomic.Pointer[cachedPiece]) {
	if len(piece) > maxCachedSize {
		return nil, nil
	}
	slot := &c.slots[maphash.String(c.seed, piece)%cacheSlots]
	if e := slot.Load(); e != nil && e.piece == piece {
		return e.ids, slot
	}
	return nil, slot
}

func (c *pieceCache) put(slot *atomic.Pointer[cachedPiece], piece string, ids []int32) {
	if slot != nil {
		slot.Store(&cachedPiece{strings.Clone(piece), append([]int32{}, ids...)})
	}
}
