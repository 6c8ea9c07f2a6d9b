package tokenizer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/bpe"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// TestComponents compares each component with the tokenizers library, see bench/published/components.py.
func TestComponents(t *testing.T) {
	data, err := os.ReadFile("testdata/components.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(unpacked)
	lines.Buffer(nil, 1<<20)
	components := map[string]any{} // components that were built, by their JSON
	n := 0
	for ; lines.Scan(); n++ {
		var row struct {
			Normalizer, Pre_tokenizer, Decoder json.RawMessage
			Text                               string
			Tokens                             []string
			Want                               any
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		var got any
		switch {
		case row.Normalizer != nil:
			got, err = normalized(components, row.Normalizer, row.Text)
		case row.Pre_tokenizer != nil:
			got, err = preTokenized(components, row.Pre_tokenizer, row.Text)
		default:
			got, err = decoded(t, row.Decoder, row.Tokens)
		}
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(row.Want)
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s%s%s of %q%q:\n got %s, %v\nwant %s", row.Normalizer, row.Pre_tokenizer, row.Decoder, row.Text, row.Tokens, a, err, b)
		}
	}
	if err := lines.Err(); err != nil || n < 2000 {
		t.Fatalf("%d rows: %v", n, err)
	}
}

// built returns the result of build for a component, which it remembers.
func built[T any](known map[string]any, c []byte, build func(any) (T, error)) (T, error) {
	if made, ok := known[string(c)]; ok {
		return made.(T), nil
	}
	var made T
	v, err := ordered.Parse(c)
	if err == nil {
		made, err = build(v)
	}
	known[string(c)] = made
	return made, err
}

func normalized(known map[string]any, c []byte, text string) (string, error) {
	normalize, err := built(known, c, buildNormalizer)
	if normalize == nil || err != nil {
		return text, err
	}
	return normalize(text), nil
}

func preTokenized(known map[string]any, c []byte, text string) ([]string, error) {
	p, err := built(known, c, buildPreTokenizer)
	pieces := []string{}
	pretokenize.Apply(p.steps, text, true, func(piece string) {
		if p.byteLevel {
			var mapped strings.Builder
			for _, b := range []byte(piece) {
				mapped.WriteRune(bpe.ByteRune(b))
			}
			piece = mapped.String()
		}
		pieces = append(pieces, piece)
	})
	return pieces, err
}

// decoded decodes tokens with a vocabulary that it makes of them. Equal tokens have equal ids.
func decoded(t *testing.T, c []byte, tokens []string) (string, error) {
	t.Helper()
	v, err := ordered.Parse(c)
	if err != nil {
		return "", err
	}
	tok := &Tokenizer{added: newAddedTokens(nil, nil)}
	var ids []int32
	for _, text := range tokens {
		id := slices.IndexFunc(tok.vocab.tokens, func(t token) bool { return t.text == text })
		if id < 0 {
			id = len(tok.vocab.tokens)
			tok.vocab.tokens = append(tok.vocab.tokens, token{text: text, bytes: text, present: true})
		}
		ids = append(ids, int32(id))
	}
	if tok.decoder, err = readDecoder(v, &tok.vocab); err != nil {
		return "", err
	}
	if streamed := stream(tok, ids, false); streamed != tok.Decode(ids, false) {
		t.Errorf("%s of %q: the stream returns %q", c, tokens, streamed)
	}
	return tok.Decode(ids, false), nil
}
