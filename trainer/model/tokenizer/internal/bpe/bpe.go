// Package bpe encodes pieces of text by byte-pair encoding.
package bpe

import "strings"

// SpaceMark stands for a space in vocabularies of the SentencePiece kind.
const SpaceMark = "▁"

// Options are the settings of a BPE model in tokenizer.json, and the kind of its vocabulary.
type Options struct {
	ByteLevel    bool   // the vocabulary is byte-level text, see ByteRune
	Unk          string // the unknown token; "": none
	FuseUnk      bool   // neighbouring unknown characters become one token
	ByteFallback bool   // a character that is not in the vocabulary becomes the tokens of its bytes
	IgnoreMerges bool   // a piece that is a token becomes this token
}

// Model is byte-pair encoding. A piece starts with one symbol for each byte (byte-level) or each character. Then the
// neighbouring pair with the lowest rank is merged, the leftmost if ranks are equal, until no pair has a rank. A Model is
// safe for concurrent use.
type Model struct {
	byteLevel bool
	bytes     [256]symbol     // byte-level: the symbols of bytes
	runes     map[rune]symbol // otherwise: the symbols of the vocabulary's characters
	absent    func(r rune) symbol
	merges    map[uint64]merge // by the ids of the pair
	whole     map[string]int32 // ignore_merges: pieces that are tokens without merging
	fuseUnk   bool
	words     string // a character before which a piece can be cut without changing its ids, "" for none
	cache     *pieceCache
}

// New returns the model of a vocabulary and its merges. An earlier merge has a lower rank. New returns an error if merges is
// nil, or if a token of merges or Unk is not in the vocabulary.
func New(vocab map[string]int32, merges [][2]string, o Options) (*Model, error) {
	m := &Model{byteLevel: o.ByteLevel, fuseUnk: o.FuseUnk, cache: newPieceCache()}
	if err := m.setMerges(vocab, merges); err != nil {
		return nil, err
	}
	if err := m.setSymbols(vocab, o); err != nil {
		return nil, err
	}
	if o.IgnoreMerges {
		m.whole = map[string]int32{}
		for text, id := range vocab {
			piece, ok := text, true
			if o.ByteLevel {
				piece, ok = ByteLevelBytes(text)
			}
			if ok && piece != "" {
				m.whole[piece] = id
			}
		}
	}
	if !o.ByteLevel && !o.IgnoreMerges && cutsAtMarks(vocab, merges, SpaceMark) {
		m.words = SpaceMark
	}
	return m, nil
}

// cutsAtMarks reports whether no merge joins a text to a mark that follows it, unless the text ends in a mark. A piece can
// then be cut before each mark that follows another character, without changing the ids. The parts are cached as words are.
func cutsAtMarks(vocab map[string]int32, merges [][2]string, mark string) bool {
	if _, ok := vocab[mark]; !ok {
		return false
	}
	for _, pair := range merges {
		if strings.HasPrefix(pair[1], mark) && !strings.HasSuffix(pair[0], mark) {
			return false
		}
	}
	return true
}

// Append appends the ids of a piece, which is not empty.
func (m *Model) Append(ids []int32, piece string) []int32 {
	if m.words == "" {
		return m.encodePiece(ids, piece)
	}
	for len(piece) > 0 {
		n := wordLength(piece, m.words)
		ids = m.encodePiece(ids, piece[:n])
		piece = piece[n:]
	}
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

func (m *Model) encodePiece(ids []int32, piece string) []int32 {
	if id, ok := m.whole[piece]; ok {
		return append(ids, id)
	}
	if len(piece) == 1 && m.byteLevel {
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
