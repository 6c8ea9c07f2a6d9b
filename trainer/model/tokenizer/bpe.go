package tokenizer

import (
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
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

func (m *bpe) encode(ids []int32, text string, first bool) []int32 {
	pretokenize.Apply(m.pre.steps, text, first, func(piece string) {
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
