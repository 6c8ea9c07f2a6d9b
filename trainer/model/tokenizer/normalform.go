package tokenizer

import (
	"sort"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalForm returns s in one of Unicode's four normalisation forms. x/text implements a stream-safe variant, which inserts
// U+034F into a character with more than 30 combining marks. normalForm handles texts with many marks itself.
func normalForm(form norm.Form, s string) string {
	if form.QuickSpanString(s) == len(s) {
		return s
	}
	if longestMarks(s) < 15 { // a mark decomposes into at most 2 marks
		return form.String(s)
	}
	return normalise(form, s)
}

// normalise does the same for any number of marks, more slowly.
func normalise(form norm.Form, s string) string {
	decomposed := norm.NFD
	if form == norm.NFKC || form == norm.NFKD {
		decomposed = norm.NFKD
	}
	marks := decompose(decomposed, s)
	if form == norm.NFC || form == norm.NFKC {
		marks = compose(marks)
	}
	var text strings.Builder
	for _, m := range marks {
		text.WriteRune(m.r)
	}
	return text.String()
}

// longestMarks returns the length of the longest run of combining marks and of characters whose decomposition contains a
// combining mark.
func longestMarks(s string) int {
	longest, current := 0, 0
	for i := 0; i < len(s); {
		p := norm.NFKD.PropertiesString(s[i:])
		if p.CCC() == 0 && p.TrailCCC() == 0 {
			current = 0
		} else {
			current++
		}
		longest = max(longest, current)
		i += max(1, p.Size())
	}
	return longest
}

type combiningMark struct {
	r   rune
	ccc uint8
}

// decompose decomposes each character by NFD or NFKD and sorts combining marks into canonical order.
func decompose(form norm.Form, s string) []combiningMark {
	var out []combiningMark
	for _, r := range s {
		for _, d := range form.String(string(r)) {
			out = append(out, combiningMark{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	for i := 0; i < len(out); i++ {
		end := i
		for end < len(out) && out[end].ccc != 0 {
			end++
		}
		marks := out[i:end]
		sort.SliceStable(marks, func(a, b int) bool { return marks[a].ccc < marks[b].ccc })
		i = end
	}
	return out
}

// compose implements the canonical composition algorithm (Unicode 3.11, D117).
func compose(in []combiningMark) []combiningMark {
	out := in[:0]
	starter := -1
	for _, m := range in {
		if starter >= 0 {
			last := out[len(out)-1]
			blocked := len(out)-1 > starter && (last.ccc == 0 || last.ccc >= m.ccc)
			if r, ok := composite(out[starter].r, m.r); ok && !blocked {
				out[starter].r = r
				continue
			}
		}
		if m.ccc == 0 {
			starter = len(out)
		}
		out = append(out, m)
	}
	return out
}

// composite returns the character that a and b compose to.
func composite(a, b rune) (rune, bool) {
	pair := string(a) + string(b)
	s := norm.NFC.String(pair)
	r, n := utf8.DecodeRuneInString(s)
	return r, n == len(s) && s != pair
}
