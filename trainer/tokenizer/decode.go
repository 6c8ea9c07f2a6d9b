package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// TokenBytes returns the bytes that an id adds to a text, none for an id without a token.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.known(id) {
		return nil
	}
	return []byte(t.tokens[id].bytes)
}

// Bytes joins the bytes of all ids. Ids without a token add nothing.
func (t *Tokenizer) Bytes(ids []int32) []byte { return t.bytes(ids, false) }

func (t *Tokenizer) bytes(ids []int32, skipSpecial bool) []byte {
	var out []byte
	first := true
	for _, id := range ids {
		if !t.known(id) || skipSpecial && t.tokens[id].special {
			continue
		}
		if t.join == joinSpaces && !first {
			out = append(out, ' ')
		}
		out = append(out, t.tokens[id].bytes...)
		first = false
	}
	return out
}

// Decode turns ids into text. It joins the bytes of all tokens and replaces each maximal part that is not UTF-8 by a
// U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	return validUTF8(string(t.bytes(ids, skipSpecial)))
}

// Stream decodes ids one at a time. The joined texts equal the text of Decode. No text ends inside a character that later
// ids may complete. A Stream must not be used by several goroutines at once.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	started     bool
	pending     []byte // at most 3 bytes: the start of a character
}

// NewStream starts a streaming decode.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial}
}

// Push decodes the next id and returns the text that later ids cannot change, usually the whole token.
func (s *Stream) Push(id int32) string {
	if !s.t.known(id) || s.skipSpecial && s.t.tokens[id].special {
		return ""
	}
	if s.t.join == joinSpaces && s.started {
		s.pending = append(s.pending, ' ')
	}
	s.started = true
	s.pending = append(s.pending, s.t.tokens[id].bytes...)
	keep := unfinished(s.pending)
	text := validUTF8(string(s.pending[:len(s.pending)-keep]))
	s.pending = append(s.pending[:0], s.pending[len(s.pending)-keep:]...)
	return text
}

// Flush returns the text of an incomplete character at the end: "" or U+FFFD. The stream can then decode another text.
func (s *Stream) Flush() string {
	text := validUTF8(string(s.pending))
	s.pending, s.started = s.pending[:0], false
	return text
}

// unfinished returns the length of an incomplete character at the end of b.
func unfinished(b []byte) int {
	for n := 1; n <= 3 && n <= len(b); n++ {
		tail := b[len(b)-n:]
		if !utf8.RuneStart(tail[0]) {
			continue
		}
		if !utf8.FullRune(tail) || surrogateStart(tail) {
			return n
		}
		return 0
	}
	return 0
}

// surrogateStart says whether b is the first two of three bytes of an encoded surrogate. It cannot become a character, but
// Python's incremental decoder waits for the third byte, and the chunks must equal Python's.
func surrogateStart(b []byte) bool {
	return len(b) == 2 && b[0] == 0xed && b[1] >= 0xa0 && b[1] <= 0xbf
}

// validUTF8 replaces each maximal subpart of an ill-formed sequence by U+FFFD, as WHATWG's decoder, Rust and Python do.
// strings.ToValidUTF8 would replace each run of such subparts by a single U+FFFD, and a range loop each byte.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var out strings.Builder
	out.Grow(len(s) + 8)
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			n = maximalSubpart(s)
		}
		out.WriteRune(r)
		s = s[n:]
	}
	return out.String()
}

// maximalSubpart returns the length, at least 1, of the longest prefix of s that is the start of a character. s starts
// with an ill-formed sequence, so the prefix has at most 3 bytes.
func maximalSubpart(s string) int {
	n := 1
	for n < 3 && n < len(s) && !utf8.FullRuneInString(s[:n+1]) {
		n++
	}
	return n
}
