package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/bpe"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// decoder describes how the texts of tokens are joined to a text. Steps on single tokens are not part of it: they are done
// when the tokenizer is loaded.
type decoder struct {
	spaces    bool   // there is no decoder: tokens are joined with spaces
	runs      bool   // ByteFallback: a run of byte tokens is decoded as a whole, see byteRun
	firstDrop string // Metaspace: the character that becomes a space, or is dropped in the first token
	stripLeft int    // Strip after Fuse: the number of characters in strip that are removed from the start of the text
	strip     string
}

// byteRun returns the text of consecutive byte tokens: the characters if the bytes are UTF-8, otherwise one U+FFFD for each
// byte, as ByteFallback of the tokenizers library does.
func byteRun(bytes []byte) string {
	if utf8.Valid(bytes) {
		return string(bytes)
	}
	return strings.Repeat("\ufffd", len(bytes))
}

// setDecoder reads the decoder and sets the decoded bytes of each token.
func (t *Tokenizer) setDecoder(v any) error {
	list, err := flatten(v, "decoders")
	if err != nil {
		return err
	}
	for i := range t.tokens {
		t.tokens[i].bytes = t.tokens[i].text
	}
	for _, a := range t.added.list {
		if a.normalized && t.normalize != nil { // as tokenizers 0.23.3 does, but not 0.22
			t.tokens[a.id].bytes = t.normalize(a.content)
		}
	}
	if len(list) > 0 && list[len(list)-1].kind == "ByteLevel" {
		return t.setByteLevelDecoder(list)
	}
	t.decoder.spaces = len(list) == 0
	fused, growth := false, 1
	for _, c := range list {
		if growth = t.addDecoderStep(c, &fused, growth); c.err != nil {
			return c.err
		}
	}
	return nil
}

// addDecoderStep applies a step to each token, or notes a step on the whole text. growth is the growth of a token's text in earlier steps,
// and the result includes this one.
func (t *Tokenizer) addDecoderStep(c *component, fused *bool, growth int) int {
	switch {
	case c.kind == "Fuse":
		*fused = true
		c.only()
	case c.kind == "Strip":
		t.addStrip(c, *fused)
	case *fused:
		c.fail("not supported after Fuse")
	case c.kind == "ByteFallback":
		t.decoder.runs = true
		for i := range t.tokens {
			if b, ok := byteOf(t.tokens[i].bytes); ok {
				t.tokens[i].bytes, t.tokens[i].isByte = string([]byte{b}), true
			}
		}
		c.only()
	case t.decoder.runs:
		c.fail("not supported after ByteFallback")
	case c.kind == "Replace":
		change := replaceStep(c)
		if growth = c.grown(growth); c.err == nil {
			t.eachToken(change)
		}
	case c.kind == "Metaspace":
		t.addMetaspace(c)
	default:
		c.unsupported("decoder")
	}
	return growth
}

func (t *Tokenizer) eachToken(change func(string) string) {
	for i := range t.tokens {
		if t.tokens[i].present {
			t.tokens[i].bytes = change(t.tokens[i].bytes)
		}
	}
}

// addStrip removes characters from each token or, after Fuse, from the text.
func (t *Tokenizer) addStrip(c *component, fused bool) {
	c.only("content", "start", "stop")
	content, _ := ordered.Value[string](c.object, "content")
	start, stop := c.count("start"), c.count("stop")
	if utf8.RuneCountInString(content) != 1 || start < 0 || stop < 0 {
		c.fail("want content, a character, and start and stop, numbers from 0 to %d", maxStrip)
	}
	if fused || t.decoder.runs {
		if !fused || stop > 0 || t.decoder.stripLeft > 0 {
			c.fail("only a start, after Fuse or before ByteFallback, is supported")
		}
		t.decoder.stripLeft, t.decoder.strip = start, content
		return
	}
	t.eachToken(func(s string) string {
		for range start {
			s = strings.TrimPrefix(s, content)
		}
		for range stop {
			s = strings.TrimSuffix(s, content)
		}
		return s
	})
}

const maxStrip = 64

// count reads a small number. It returns -1 if the value is anything else.
func (c *component) count(key string) int {
	n, ok := ordered.Value[int64](c.object, key)
	if !ok || n < 0 || n > maxStrip {
		return -1
	}
	return int(n)
}

// addMetaspace replaces a character by spaces. The first token of a text loses it instead.
func (t *Tokenizer) addMetaspace(c *component) {
	mark, scheme := metaspace(c)
	switch {
	case t.decoder.firstDrop != "":
		c.fail("two such decoders are not supported")
	case c.err != nil:
	case scheme == "never":
		t.eachToken(func(s string) string { return strings.ReplaceAll(s, mark, " ") })
	default:
		t.decoder.firstDrop = mark
	}
}

// byteOf returns the byte of a token <0x00> to <0xFF>.
func byteOf(token string) (b byte, ok bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(n), err == nil
}

// setByteLevelDecoder accepts ByteLevel. It also accepts the sequence that transformers writes for converted GGUF files:
// ByteFallback, Fuse, Replace("▁", " "), ByteLevel. That sequence decodes to the same text if every token is byte-level
// text, which contains no ▁, and no token is a <0x..> token.
func (t *Tokenizer) setByteLevelDecoder(list []*component) error {
	for i, c := range list {
		switch {
		case i == len(list)-1:
			c.only("add_prefix_space", "trim_offsets", "use_regex")
		case len(list) == 4 && (i == 0 && c.kind == "ByteFallback" || i == 1 && c.kind == "Fuse"):
			c.only()
		case len(list) == 4 && i == 2 && c.kind == "Replace":
			checkReplace(c)
		default:
			c.unsupported("decoder")
		}
		if c.err != nil {
			return c.err
		}
	}
	for id := range t.tokens {
		token := &t.tokens[id]
		bytes, ok := bpe.ByteLevelBytes(token.bytes)
		if _, isByte := byteOf(token.bytes); len(list) > 1 && (token.present && !ok || isByte) {
			return fmt.Errorf("a decoder with ByteFallback is not supported for token %d, %.60q", id, token.text)
		}
		if ok { // otherwise the token is its own text, as in the tokenizers library
			token.bytes = bytes
		}
	}
	return nil
}

func checkReplace(c *component) {
	c.only("pattern", "content")
	if to, _ := c.object.Get("content"); readPattern(c) != pretokenize.Literal(bpe.SpaceMark) || to != " " {
		c.fail("before ByteLevel, only ▁ replaced by a space is supported")
	}
}
