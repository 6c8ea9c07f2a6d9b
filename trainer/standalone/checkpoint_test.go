package standalone

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

var testdata = filepath.Join("..", "..", "testdata")

func open(t testing.TB, path string, opt Options) *Checkpoint {
	t.Helper()
	c, err := Open(context.Background(), path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestWeightsAlone: a folder with weights and without a tokenizer is enough for requests with token ids.
func TestWeightsAlone(t *testing.T) {
	dir := filepath.Join(testdata, "models", "qwen3-untied-bf16")
	c := open(t, dir, Options{Device: "cpu", Threads: 1, DType: "auto", Context: 20})
	if c.Tokenizer != nil || !strings.Contains(c.NoTokenizerError().Error(), dir) {
		t.Errorf("got tokenizer %v, error %v", c.Tokenizer, c.NoTokenizerError())
	}
	if got := c.model.MaxPosition(); got != 20 {
		t.Errorf("got context %d, want 20", got)
	}
	if got := c.model.Compute.DType(); got != torch.Float32 {
		t.Errorf("default on a CPU: got weights in %v", got)
	}
	if got := c.StopIDs(); !slices.Equal(got, []int32{2}) {
		t.Errorf("got stop ids %v, want config.json's", got)
	}
	if got := open(t, dir, Options{Device: "cpu", DType: "bf16"}).model.Compute.DType(); got != torch.BFloat16 {
		t.Errorf("bf16: got weights in %v", got)
	}
}

// TestUnreadTokenizer: weights with a tokenizer that cannot be read are enough for requests with token ids.
func TestUnreadTokenizer(t *testing.T) {
	for _, name := range []string{"sentencepiece.gguf", "bare.gguf"} {
		c := open(t, filepath.Join("testdata", name), Options{Device: "cpu", Threads: 1})
		if c.Tokenizer != nil || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], name) || !strings.Contains(c.NoTokenizerError().Error(), "tokenizer.ggml.") {
			t.Errorf("%s: got notes %q, error %v", name, c.Notes, c.NoTokenizerError())
		}
	}
}

// TestTokenizerFiles: a tokenizer must be readable for requests with text and for a merge, in a
// folder with weights and in a folder of its own.
func TestTokenizerFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(testdata, "models", "llama-tiny", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := open(t, dir, Options{Device: "cpu"})
	if err := c.NoTokenizerError(); c.Tokenizer != nil || !strings.Contains(err.Error(), "tokenizer.json") || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("a broken tokenizer: got error %v", err)
	}
	if err := c.Merge(context.Background(), filepath.Join(dir, "merged")); err == nil || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("a merge with a broken tokenizer: got error %v", err)
	}
	if tok, err := LoadTokenizer(filepath.Join(testdata, "tokenizer", "smollm2")); err != nil || tok.VocabSize() != 49152 {
		t.Errorf("a tokenizer without weights: got error %v", err)
	}
	for _, path := range []string{filepath.Join(dir, "absent"), filepath.Join(dir, "config.json")} {
		if _, err := LoadTokenizer(path); err == nil || !strings.Contains(err.Error(), filepath.Base(path)) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestRefusedOptions: an unknown precision is refused, and so is a merge without an adapter or of rounded weights.
func TestRefusedOptions(t *testing.T) {
	dir := filepath.Join(testdata, "models", "llama-tiny")
	if _, err := Open(t.Context(), dir, Options{DType: "float16"}); err == nil || !strings.Contains(err.Error(), "fp32") {
		t.Errorf("float16: %v", err)
	}
	if err := open(t, dir, Options{}).Merge(t.Context(), filepath.Join(t.TempDir(), "merged")); err == nil || !strings.Contains(err.Error(), "without an adapter") {
		t.Errorf("a merge without an adapter: %v", err)
	}
	adapted := open(t, dir, Options{DType: "bf16", Adapter: filepath.Join(testdata, "lora", "llama-qkvo")})
	if err := adapted.Merge(t.Context(), filepath.Join(t.TempDir(), "merged")); err == nil || !strings.Contains(err.Error(), "fp32") {
		t.Errorf("a merge in bf16: %v", err)
	}
}

// TestCacheTokens: the cache of many long conversations is bounded, and has room for one of them.
func TestCacheTokens(t *testing.T) {
	for _, c := range []struct{ slots, limit, want int }{{16, 512, 0}, {16, 8192, 0}, {16, 40_960, 131_072}, {2, 131_072, 131_072}, {1, 262_144, 262_144}} {
		if got := cacheTokens(c.slots, c.limit); got != c.want {
			t.Errorf("%d conversations of %d tokens: got a cache of %d tokens, want %d", c.slots, c.limit, got, c.want)
		}
	}
}
