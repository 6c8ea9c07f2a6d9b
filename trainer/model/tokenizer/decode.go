package tokenizer

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding/unicode"
)

// TokenBytes returns the bytes that an id adds after other text. It returns nil for an id without a token.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.vocab.known(id) {
		return nil
	}
	return []byte(t.decoder.text(t.vocab.tokens[id], false))
}

// text returns the text that a token adds. The first token of a text loses a mark that is a space elsewhere.
func (d *decoder) text(of token, first bool) string {
	if d.firstDrop == "" {
		return of.bytes
	}
	if first {
		return strings.ReplaceAll(of.bytes, d.firstDrop, "")
	}
	return strings.ReplaceAll(of.bytes, d.firstDrop, " ")
}

// Bytes joins the bytes of all ids. Ids without a token add nothing.
func (t *Tokenizer) Bytes(ids []int32) []byte {
	var out []byte
	first := true
	for _, id := range ids {
		if !t.vocab.known(id) {
			continue
		}
		if t.decoder.spaces && !first {
			out = append(out, ' ')
		}
		out = append(out, t.decoder.text(t.vocab.tokens[id], first)...)
		first = false
	}
	return out
}

// Decode converts ids to text. It joins the bytes of all tokens and replaces each maximal part that is not UTF-8 with one
// U+FFFD. If the tokenizer has byte tokens (<0x00> and so on), a run of them that is not UTF-8 becomes one U+FFFD for each
// byte, as in the tokenizers library.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.NewStream(skipSpecial)
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(s.Push(id))
	}
	text.WriteString(s.Flush())
	return text.String()
}

// Stream decodes ids one at a time. The joined texts equal the text of Decode. No text ends inside a character that later
// ids may complete. A Stream must not be used by several goroutines at once.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	started     bool
	stripped    int    // number of characters that the decoder's Strip has removed from the start of the text
	inText      bool   // the text has begun, and Strip has ended
	pending     []byte // the first bytes of a character, at most 3; or a run of byte tokens
}

// NewStream starts a streaming decode.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial}
}

// Push decodes the next id and returns the text that later ids cannot change, usually the whole token.
func (s *Stream) Push(id int32) string {
	if !s.t.vocab.known(id) || s.skipSpecial && s.t.vocab.tokens[id].special {
		return ""
	}
	text := s.t.decoder.text(s.t.vocab.tokens[id], !s.started)
	if s.t.decoder.spaces && s.started {
		text = " " + text
	}
	s.started = true
	if s.t.decoder.runs {
		return s.strip(s.pushRun(text, s.t.vocab.tokens[id].isByte))
	}
	if len(s.pending) == 0 && utf8.ValidString(text) {
		return s.strip(text)
	}
	s.pending = append(s.pending, text...)
	keep := incompleteSuffix(s.pending)
	text = validUTF8(string(s.pending[:len(s.pending)-keep]))
	s.pending = append(s.pending[:0], s.pending[len(s.pending)-keep:]...)
	return s.strip(text)
}

// pushRun holds byte tokens back until their run has ended.
func (s *Stream) pushRun(text string, isByte bool) string {
	if isByte {
		s.pending = append(s.pending, text...)
		return ""
	}
	if len(s.pending) == 0 {
		return text
	}
	text = byteRun(s.pending) + text
	s.pending = s.pending[:0]
	return text
}

// strip removes the decoder's characters from the start of the text.
func (s *Stream) strip(text string) string {
	for !s.inText && text != "" {
		if s.stripped == s.t.decoder.stripLeft || !strings.HasPrefix(text, s.t.decoder.strip) {
			s.inText = true
			break
		}
		text = text[len(s.t.decoder.strip):]
		s.stripped++
	}
	return text
}

// Flush returns the text of an incomplete character at the end, "" or U+FFFD, or the text of the byte tokens at the end.
// Then the stream can decode another text.
func (s *Stream) Flush() string {
	text := validUTF8(string(s.pending))
	if s.t.decoder.runs {
		text = byteRun(s.pending)
	}
	text = s.strip(text)
	*s = Stream{t: s.t, skipSpecial: s.skipSpecial, pending: s.pending[:0]}
	return text
}

// incompleteSuffix returns the length of an incomplete character at the end of b.
func incompleteSuffix(b []byte) int {
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

// surrogateStart reports whether b is the first two of the three bytes of an encoded surrogate. It cannot become a
// character, but Python's incremental decoder waits for the third byte, and the chunks must equal Python's.
func surrogateStart(b []byte) bool {
	return len(b) == 2 && b[0] == 0xed && b[1] >= 0xa0 && b[1] <= 0xbf
}

// validUTF8 replaces each maximal subpart of an ill-formed sequence by U+FFFD, as WHATWG's decoder, Rust and Python do.
// strings.ToValidUTF8 would replace each run of such subparts by a single U+FFFD, and a range loop each byte.
func validUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	s, _ = unicode.UTF8.NewDecoder().String(s) // it fails for no text
	return s
}
