package convert

import (
	"math"
	"strings"
	"testing"
)

func TestFromGGUFRefuses(t *testing.T) {
	for want, change := range map[string]func(map[string]any){
		`model is "bert"`:  func(m map[string]any) { m["tokenizer.ggml.model"] = "bert" },
		"scores is absent": func(m map[string]any) { m["tokenizer.ggml.model"] = "llama" },
		"of type []int64":  func(m map[string]any) { m["tokenizer.ggml.model"], m["tokenizer.ggml.scores"] = "llama", []int64{1} },
		"2 scores for 3": func(m map[string]any) {
			m["tokenizer.ggml.model"], m["tokenizer.ggml.scores"] = "llama", []float64{1, 2}
		},
		`pre is "deepseek`:     func(m map[string]any) { m["tokenizer.ggml.pre"] = "deepseek-llm" },
		"pre is absent":        func(m map[string]any) { delete(m, "tokenizer.ggml.pre") },
		"token types":          func(m map[string]any) { m["tokenizer.ggml.token_type"] = []int64{1} },
		"of type []interface":  func(m map[string]any) { m["tokenizer.ggml.tokens"] = []any{"a"} },
		"not a pair of tokens": func(m map[string]any) { m["tokenizer.ggml.merges"] = []string{"a  b"} },
		"occurs twice":         func(m map[string]any) { m["tokenizer.ggml.tokens"] = []string{"a", "b", "a"} },
		"has the type 6":       func(m map[string]any) { m["tokenizer.ggml.token_type"] = []int64{1, 1, 6} },
		"there is no such token": func(m map[string]any) {
			m["tokenizer.ggml.add_bos_token"], m["tokenizer.ggml.bos_token_id"] = true, int64(math.MaxUint32)
		},
		"unknown type 7": func(m map[string]any) { m["tokenizer.ggml.token_type"] = []int64{1, 1, 7} },
	} {
		meta := map[string]any{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
			"tokenizer.ggml.tokens": []string{"a", "b", "ab"}, "tokenizer.ggml.token_type": []int64{1, 1, 1},
			"tokenizer.ggml.merges": []string{"a b"}}
		if _, _, err := FromGGUF(meta); err != nil {
			t.Fatal(err)
		}
		change(meta)
		if _, _, err := FromGGUF(meta); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
