package tokenizer

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/convert"
)

// TestWriteGGUF writes the vocabularies of published tokenizers and checks the keys. WriteGGUF itself compares the ids of its own texts.
func TestWriteGGUF(t *testing.T) {
	for name, pre := range map[string]string{"qwen2_5": "qwen2", "qwen3": "qwen2", "smollm2": "smollm"} {
		tok := goldenTokenizer(t, name)
		rows := tok.VocabSize() + 3
		meta, err := tok.GGUF(rows)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		tokens, types := meta["tokenizer.ggml.tokens"].([]string), meta["tokenizer.ggml.token_type"].([]int64)
		if meta["tokenizer.ggml.pre"] != pre || len(tokens) != rows || types[rows-1] != convert.TokenUnused || types[tok.EOS()] != convert.TokenControl || types[1000] != convert.TokenNormal {
			t.Errorf("%s: pre %v, %d tokens, types %v", name, meta["tokenizer.ggml.pre"], len(tokens), types[rows-4:])
		}
		if template, _ := meta["tokenizer.chat_template"].(string); !strings.Contains(template, "messages") {
			t.Errorf("%s: template %.60q", name, template)
		}
		if _, err := tok.GGUF(tok.VocabSize() - 1); err == nil || !strings.Contains(err.Error(), "rows") {
			t.Errorf("%s with too few rows: %v", name, err)
		}
	}
}

// TestWriteGGUFOfConfig: a token that only tokenizer_config.json has is written with its text.
func TestWriteGGUFOfConfig(t *testing.T) {
	const byteLevel = `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}`
	tok := parseSmall(t, `{"added_tokens_decoder":{"4":{"content":"<f>","special":true}}}`,
		byteLevel, `{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},`+byteLevel+`]}`)
	meta, err := tok.GGUF(6)
	if err != nil {
		t.Fatal(err)
	}
	tokens, types := meta["tokenizer.ggml.tokens"].([]string), meta["tokenizer.ggml.token_type"].([]int64)
	if tokens[4] != "<f>" || types[4] != convert.TokenControl || tokens[5] != "[PAD5]" {
		t.Errorf("tokens %q, types %v", tokens, types)
	}
}

// TestWriteGGUFRefuses: tokenizers that GGUF keys cannot describe are refused.
func TestWriteGGUFRefuses(t *testing.T) {
	const model = `"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}`
	const pre = `"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "decoder": {"type": "ByteLevel"}`
	for _, c := range []struct{ json, want string }{
		{`"normalizer": {"type": "Lowercase"}, ` + pre + `, ` + model, "normalizer Lowercase"},
		{`"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}, "decoder": {"type": "ByteLevel"}, ` + model, "add_prefix_space"},
		{`"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": false},
			{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, "decoder": {"type": "ByteLevel"}, ` + model, "no value of tokenizer.ggml.pre"},
		{pre + `, "added_tokens": [{"id": 3, "content": "<x>", "single_word": false, "lstrip": true, "rstrip": false, "normalized": false, "special": true}], ` + model, "lstrip"},
		{`"model": {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}, "pre_tokenizer": {"type": "WhitespaceSplit"}`, "only byte-level BPE"},
	} {
		tok, err := Parse(map[string][]byte{fileTokenizer: []byte("{" + c.json + "}")})
		if err != nil {
			t.Fatalf("%s: %v", c.want, err)
		}
		if _, err := tok.GGUF(10); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
}
