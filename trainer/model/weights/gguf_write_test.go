package weights

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// TestGGUFIsAFile: a pipe or a device is not replaced with a file.
func TestGGUFIsAFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := arch.Config{Family: "llama", VocabSize: 8, Hidden: 32, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 32, FFN: 32, MaxPosition: 8}.WithDefaults()
	err := WriteGGUF(pipe, cfg, map[string]any{}, func(string, []float32) error { return nil }, F32)
	if info, lost := os.Lstat(pipe); err == nil || lost != nil || info.Mode().IsRegular() {
		t.Errorf("got error %v and the file %v, %v", err, info, lost)
	}
}

// TestWrittenGGUF writes models of each kind that GGUF has: interleaved heads, norms of 1 + w, stacked experts, biases, rope factors,
// convolutions and heads in another order. It reads them again; configuration and values are the same, up to the rounding of the type.
func TestWrittenGGUF(t *testing.T) {
	base := arch.Config{VocabSize: 50, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 96, MaxPosition: 128, Tied: true}
	for name, change := range map[string]func(c *arch.Config){
		"llama": func(c *arch.Config) {
			c.Family, c.Tied, c.Rope.Theta = "llama", false, 5e5
			c.Rope.Scaling = &arch.RopeLlama3{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPosition: 8192}
		},
		"qwen2":       func(c *arch.Config) { c.Family = "qwen2" },
		"gemma3_text": func(c *arch.Config) { c.Family, c.Layers, c.Windows = "gemma3_text", 6, []int{8, 8, 8, 8, 8, 0} },
		"lfm2":        func(c *arch.Config) { c.Family, c.Layers = "lfm2", 3 },
		"qwen3_5_text": func(c *arch.Config) {
			c.Family, c.Layers = "qwen3_5_text", 3
			c.GatedDelta = &arch.GatedDelta{Layers: []bool{true, false, true}, KeyHeads: 2, ValueHeads: 6, KeyDim: 16, ValueDim: 16, Width: 4}
		},
		"qwen3_moe": func(c *arch.Config) {
			c.Family, c.Mixture = "qwen3_moe", &arch.Mixture{Experts: 4, PerToken: 2, FFN: 32, Normalise: true, Step: 1}
		},
	} {
		cfg := base
		change(&cfg)
		cfg = cfg.WithDefaults()
		values := map[string][]float32{}
		random := rand.New(rand.NewPCG(1, 2))
		for _, tensor := range cfg.Layout().Tensors() {
			for range tensor.Numel() {
				// Exact in bf16.
				values[tensor.Name] = append(values[tensor.Name], math.Float32frombits(math.Float32bits(float32(random.NormFloat64()))&^0xffff))
			}
		}
		for dtype, tolerance := range map[DType]float64{F32: 0, BF16: 0, F16: 1e-3, Q8_0: 5e-3} {
			file := filepath.Join(t.TempDir(), "m.gguf")
			read := func(name string, dst []float32) error { copy(dst, values[name]); return nil }
			if err := WriteGGUF(file, cfg, map[string]any{"tokenizer.ggml.model": "none"}, read, dtype); err != nil {
				t.Errorf("%s in %s: %v", name, dtype, err)
				continue
			}
			src, err := Open(file)
			if err != nil {
				t.Errorf("%s in %s: %v", name, dtype, err)
				continue
			}
			if got := src.Config(); got.Family != cfg.Family || got.Layers != cfg.Layers || got.Tied != cfg.Tied {
				t.Errorf("%s in %s: %+v", name, dtype, got)
			}
			for _, tensor := range cfg.Layout().Tensors() {
				got := make([]float32, tensor.Numel())
				if err := src.Read(tensor.Name, 0, tensor.Shape[0], got); err != nil {
					t.Fatalf("%s in %s: %s: %v", name, dtype, tensor.Name, err)
				}
				for i, v := range values[tensor.Name] {
					allowed := tolerance * 4 // values are below 5, and Q8_0 divides them into 127 parts
					if len(tensor.Shape) == 1 {
						allowed = 1e-6 // because of 1 + w
					}
					if !(math.Abs(float64(got[i]-v)) <= allowed) {
						t.Fatalf("%s in %s: %s[%d] is %v, want %v", name, dtype, tensor.Name, i, got[i], v)
					}
				}
			}
			src.Close()
		}
	}
}
