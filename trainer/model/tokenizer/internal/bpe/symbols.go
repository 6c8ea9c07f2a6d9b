package bpe

import (
	"fmt"
	"unicode/utf8"
)

// symbol is the start of a byte or character: token ids, or the unknown token, or nothing if there is no unknown token.
type symbol struct {
	ids []int32
	unk bool
}

// noID stands for an unknown token that the vocabulary does not have.
const noID int32 = -1

func (m *Model) setSymbols(vocab map[string]int32, o Options) error {
	unk := noID
	if o.Unk != "" {
		id, ok := vocab[o.Unk]
		if !ok {
			return fmt.Errorf("unk_token %q is not in the vocabulary", o.Unk)
		}
		unk = id
	}
	var fallback map[byte]int32
	if o.ByteFallback {
		fallback = byteTokens(vocab)
	}
	m.absent = func(r rune) symbol { return absentSymbol(string(r), fallback, unk) }
	if m.byteLevel {
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
	case unk != noID:
		return symbol{ids: []int32{unk}, unk: true}
	}
	return symbol{}
}

// appendSymbols appends the symbols of a piece. With fuse_unk, neighbouring unknown characters become one token.
func (m *Model) appendSymbols(ids []int32, piece string) []int32 {
	afterUnk := false
	add := func(s symbol) {
		if s.unk && afterUnk && m.fuseUnk {
			return
		}
		ids = append(ids, s.ids...)
		afterUnk = s.unk
	}
	if m.byteLevel {
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
