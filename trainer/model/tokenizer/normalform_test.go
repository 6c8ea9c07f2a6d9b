package tokenizer

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
)

func TestNFC(t *testing.T) {
	dots, acute := "\u0323", "\u0301"
	for _, c := range []struct{ in, want string }{
		{"plain", "plain"},
		{"e" + acute, "é"},
		{"q" + acute + dots, "q" + dots + acute},
		{"a" + dots + acute, "\u1ea1" + acute},
		{"\u1100\u1161\u11a8", "각"},
		{"\u2126", "Ω"},
		// with more than 30 marks, x/text would insert a U+034F
		{"e" + strings.Repeat(acute, 40), "é" + strings.Repeat(acute, 39)},
		{"e" + strings.Repeat(acute, 40) + strings.Repeat(dots, 2), "\u1eb9" + dots + strings.Repeat(acute, 40)},
	} {
		if got := normalForm(norm.NFC, c.in); got != c.want {
			t.Errorf("NFC of %+q: got %+q, want %+q", c.in, got, c.want)
		}
	}
}

// TestComposeEqualsXText compares our composition with x/text's for every character that x/text has in its tables, and for some pairs.
func TestComposeEqualsXText(t *testing.T) {
	marks := []rune{0x300, 0x301, 0x323, 0x327, 0x338, 0x3099, 0x1161, 0x11a8, 0x9be, 'a', 0x345}
	for r := rune(0); r < 0x30000; r++ {
		for _, m := range marks {
			s := string(r) + string(m)
			if got, want := normalise(norm.NFC, s), norm.NFC.String(s); got != want {
				t.Fatalf("%+q: got %+q, want %+q", s, got, want)
			}
		}
		if r == 0x3400 {
			r = 0xabff // the characters in between do not decompose
		}
	}
}
