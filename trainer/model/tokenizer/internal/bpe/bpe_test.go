package bpe

import (
	"slices"
	"strings"
	"testing"
)

// slowly merges one pair at a time and searches all pairs for it. The fast merges must return the same ids.
func slowly(m *Model, piece string) []int32 {
	ids := m.appendSymbols(nil, piece)
	for {
		best, at := merge{rank: noRank}, -1
		for i := range ids {
			if found := m.pair(ids, i); found.rank < best.rank {
				best, at = found, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, best.id)
	}
}

// FuzzAppend compares the merges of a byte-level model with those of slowly.
func FuzzAppend(f *testing.F) {
	for _, s := range []string{"the the", "ababababa aaaaaaaaa", "é 😀 12\n\n  x", "\xff\xf0\x9f", strings.Repeat("aab the é", 40)} {
		f.Add(s)
	}
	vocab := map[string]int32{}
	for b := range 256 {
		vocab[string(ByteRune(byte(b)))] = int32(b)
	}
	merges := [][2]string{{"a", "b"}, {"Ġ", "t"}, {"h", "e"}, {"Ġt", "he"}, {"ab", "ab"}, {"Ã", "©"}, {"ð", "Ł"}, {"1", "2"}, {"a", "a"}, {"aa", "aa"}}
	for _, pair := range merges {
		vocab[pair[0]+pair[1]] = int32(len(vocab))
	}
	m, err := New(vocab, merges, Options{ByteLevel: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, want := m.Append(nil, text), slowly(m, text); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}
