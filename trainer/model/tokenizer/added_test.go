package tokenizer

import "testing"

// TestLongestAddedToken: if several added tokens match, the longest one wins, regardless of their order in the file.
func TestLongestAddedToken(t *testing.T) {
	for _, order := range [][]string{{"<a>", "<a>bc", "<a>b"}, {"<a>bc", "<a>b", "<a>"}} {
		var m matcher
		for i, content := range order {
			m.add(addedToken{id: int32(i), content: content})
		}
		for text, want := range map[string]string{"<a>bcd": "<a>bc", "<a>bd": "<a>b", "<a>": "<a>", "<a>c": "<a>"} {
			if got := m.longest(text); got == nil || got.content != want {
				t.Errorf("%v: %q begins with %v, want %q", order, text, got, want)
			}
		}
		if got := m.longest("<"); got != nil {
			t.Errorf("%v: %v", order, got)
		}
	}
}

// TestEqualAddedTokens: normalisation may make added tokens equal. A special one is found, or else the first.
func TestEqualAddedTokens(t *testing.T) {
	for want, special := range [][]bool{{false, false}, {false, true}} {
		var m matcher
		for i, s := range special {
			m.add(addedToken{id: int32(i), content: "é", special: s})
		}
		if got := m.longest("é"); got == nil || got.id != int32(want) {
			t.Errorf("special %v: got %v, want token %d", special, got, want)
		}
	}
}
