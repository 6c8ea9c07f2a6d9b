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

// decoderReader reads a decoder. It does the steps on single tokens.
type decoderReader struct {
	decoder
	vocab  *vocabulary
	fused  bool // after Fuse
	growth int  // of a token's text in the steps so far
}

// readDecoder reads the decoder and sets the decoded bytes of each token.
func readDecoder(v any, vocab *vocabulary) (decoder, error) {
	list, err := flatten(v, "decoders")
	if err != nil {
		return decoder{}, err
	}
	if len(list) > 0 && list[len(list)-1].kind == "ByteLevel" {
		return decoder{}, readByteLevel(list, vocab)
	}
	r := &decoderReader{decoder: decoder{spaces: len(list) == 0}, vocab: vocab, growth: 1}
	for _, c := range list {
		if r.add(c); c.err != nil {
			return decoder{}, c.err
		}
	}
	return r.decoder, nil
}

// add applies a step to each token, or notes a step on the whole text.
func (r *decoderReader) add(c *component) {
	switch {
	case c.kind == "Fuse":
		r.fused = true
		c.only()
	case c.kind == "Strip":
		r.addStrip(c)
	case r.fused:
		c.fail("not supported after Fuse")
	case c.kind == "ByteFallback":
		r.runs = true
		for i := range r.vocab.tokens {
			if b, ok := byteOf(r.vocab.tokens[i].bytes); ok {
				r.vocab.tokens[i].bytes, r.vocab.tokens[i].isByte = string([]byte{b}), true
			}
		}
		c.only()
	case r.runs:
		c.fail("not supported after ByteFallback")
	case c.kind == "Replace":
		change := replaceStep(c)
		if r.growth = c.growthAfter(r.growth); c.err == nil {
			r.vocab.mapBytes(change)
		}
	case c.kind == "Metaspace":
		r.addMetaspace(c)
	default:
		c.unsupported("decoder")
	}
}

// addStrip removes characters from each token or, after Fuse, from the text.
func (r *decoderReader) addStrip(c *component) {
	c.only("content", "start", "stop")
	content, _ := ordered.Value[string](c.object, "content")
	start, stop := c.count("start"), c.count("stop")
	if utf8.RuneCountInString(content) != 1 || start < 0 || stop < 0 {
		c.fail("want content, a character, and start and stop, numbers from 0 to %d", maxStrip)
	}
	if r.fused || r.runs {
		if !r.fused || stop > 0 || r.stripLeft > 0 {
			c.fail("only a start, after Fuse or before ByteFallback, is supported")
		}
		r.stripLeft, r.strip = start, content
		return
	}
	r.vocab.mapBytes(func(s string) string {
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
func (r *decoderReader) addMetaspace(c *component) {
	mark, scheme := metaspace(c)
	switch {
	case r.firstDrop != "":
		c.fail("two such decoders are not supported")
	case c.err != nil:
	case scheme == "never":
		r.vocab.mapBytes(func(s string) string { return strings.ReplaceAll(s, mark, " ") })
	default:
		r.firstDrop = mark
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

// readByteLevel accepts ByteLevel. It also accepts the sequence that transformers writes for converted GGUF files:
// ByteFallback, Fuse, Replace("▁", " "), ByteLevel. That sequence decodes to the same text if every token is byte-level
// text, which contains no ▁, and no token is a <0x..> token.
func readByteLevel(list []*component, vocab *vocabulary) error {
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
	for id := range vocab.tokens {
		token := &vocab.tokens[id]
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
