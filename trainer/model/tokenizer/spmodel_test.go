package tokenizer

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// spModelFile returns a tokenizer.model: BPE with byte tokens and the pieces <unk>, <s>, </s>, ▁, a and ▁a. Its numbers are those of
// the fields in sentencepiece_model.proto. more are fields of trainer_spec that are true.
func spModelFile(more ...protowire.Number) []byte {
	number := func(b []byte, field protowire.Number, n uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
	}
	message := func(b []byte, field protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
	}
	const normal, unknown, control = 1, 2, 3
	var file []byte
	for i, p := range []struct {
		text string
		kind uint64
	}{{"<unk>", unknown}, {"<s>", control}, {"</s>", control}, {"▁", normal}, {"a", normal}, {"▁a", normal}} {
		// pieces: piece, score, type
		piece := message(nil, 1, []byte(p.text))
		piece = protowire.AppendFixed32(protowire.AppendTag(piece, 2, protowire.Fixed32Type), math.Float32bits(float32(-i)))
		file = message(file, 1, number(piece, 3, p.kind))
	}
	const bpe = 2
	trainer := number(nil, 3, bpe) // trainer_spec: model_type, byte_fallback
	for _, field := range append(more, 35) {
		trainer = number(trainer, field, 1)
	}
	file = message(file, 2, trainer)
	return message(file, 3, number(message(nil, 1, []byte("identity")), 4, 0)) // normalizer_spec: name, remove_extra_whitespaces
}

// TestPrefixSpace: add_prefix_space false of tokenizer_config.json turns the prefix of tokenizer.model off, as LlamaTokenizer of
// transformers 5.24 does.
func TestPrefixSpace(t *testing.T) {
	for _, c := range []struct {
		config  string
		ids     [2][]int32 // of "a" and " a"
		decoded [2]string
	}{
		{`{}`, [2][]int32{{5}, {3, 5}}, [2]string{"a", " a"}},
		{`{"add_prefix_space":null}`, [2][]int32{{5}, {3, 5}}, [2]string{"a", " a"}},
		{`{"legacy":false,"add_prefix_space":true}`, [2][]int32{{5}, {5}}, [2]string{"a", "a"}},
		{`{"legacy":false,"add_prefix_space":false}`, [2][]int32{{4}, {5}}, [2]string{"a", " a"}},
		{`{"legacy":true,"add_prefix_space":false}`, [2][]int32{{4}, {5}}, [2]string{"a", " a"}},
	} {
		tok, err := Parse(map[string][]byte{fileModel: spModelFile(), fileConfig: []byte(c.config)})
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range []string{"a", " a"} {
			ids := tok.Encode(text)
			if decoded := tok.Decode(ids, false); !slices.Equal(ids, c.ids[i]) || decoded != c.decoded[i] {
				t.Errorf("%s: %q has the ids %v and is decoded to %q, want %v and %q", c.config, text, ids, decoded, c.ids[i], c.decoded[i])
			}
		}
	}
}

// TestSuffixes: a model whose pieces end in spaces (treat_whitespace_as_suffix) is refused: it would get other ids.
func TestSuffixes(t *testing.T) {
	_, err := Parse(map[string][]byte{fileModel: spModelFile(24)})
	if err == nil || !strings.Contains(err.Error(), "treat_whitespace_as_suffix") {
		t.Errorf("got error %v", err)
	}
}
