package checkpoint

import (
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// smollmGolden is smollm2-expected.json, as far as weights go.
type smollmGolden struct {
	Config struct {
		Vocab    int     `json:"vocab_size"`
		Hidden   int     `json:"hidden_size"`
		FFN      int     `json:"intermediate_size"`
		Layers   int     `json:"num_hidden_layers"`
		Heads    int     `json:"num_attention_heads"`
		KVHeads  int     `json:"num_key_value_heads"`
		HeadDim  int     `json:"head_dim"`
		Theta    float64 `json:"rope_theta"`
		Eps      float64 `json:"rms_norm_eps"`
		Tied     bool    `json:"tie_word_embeddings"`
		BOS, EOS int32
	}
	Meta    map[string]any `json:"gguf_metadata"`
	Tensors []struct {
		GGUF, HF, Type string
		Shape          []int64
	}
	Rows []map[string]any `json:"dequantised_rows"`

	Checksums map[string]checksum `json:"checksums_hf_layout"`
}

// smollmFile finds the GGUF that `make gsm8k` puts in place, or skips.
func smollmFile(t *testing.T) string {
	t.Helper()
	path := os.Getenv("MGRPO_SMOLLM2_GGUF")
	if path == "" {
		path = filepath.Join("..", "..", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("golden: smollm2: SmolLM2-135M-Instruct.Q4_1.gguf absent")
	}
	return path
}

func TestGoldenSmolLM2(t *testing.T) {
	path := smollmFile(t)
	var want smollmGolden
	readJSON(t, golden.File(t, "models", "smollm2-expected.json"), &want)
	s := openChecked(t, path)

	c, w := s.Config(), want.Config
	if c.VocabSize != w.Vocab || c.Hidden != w.Hidden || c.FFN != w.FFN || c.Layers != w.Layers || c.Heads != w.Heads || c.KVHeads != w.KVHeads ||
		c.HeadDim != w.HeadDim || c.RopeTheta != w.Theta || c.RMSEps != w.Eps || c.Tied != w.Tied || c.Family != Llama || c.RopeScaling != nil {
		t.Errorf("config %+v, want %+v", c, w)
	}
	for key, v := range want.Meta {
		got := s.GGUFMeta()[key]
		if n, ok := got.(int64); ok {
			got = float64(n)
		}
		if got != v {
			t.Errorf("metadata %s is %v, want %v", key, got, v)
		}
	}
	var names []string
	for _, tensor := range want.Tensors {
		names = append(names, tensor.HF)
		shape, dtype, ok := s.Info(tensor.HF)
		if !ok || !slices.Equal(shape, tensor.Shape) || string(dtype) != tensor.Type {
			t.Errorf("%s: %v %s, want %v %s", tensor.HF, shape, dtype, tensor.Shape, tensor.Type)
		}
	}
	if sort.Strings(names); !slices.Equal(names, s.Names()) {
		t.Error("names differ")
	}
	for name, sum := range want.Checksums {
		if got := checksumOf(t, s, name); got.differs(sum, 1e-6, 1e-10) {
			t.Errorf("%s: %+v, want %+v", name, got, sum)
		}
	}
	for _, row := range want.Rows {
		checkGoldenRow(t, s, row)
	}
	golden.Count("models/smollm2 rows and tensors", len(want.Rows)+len(want.Checksums))
}

// checkGoldenRow compares the lists first_* and last_* of one dequantised row, the row's sum, and the
// stored bytes of its first block.
func checkGoldenRow(t *testing.T, s *Source, row map[string]any) {
	t.Helper()
	name, at := row["hf"].(string), int64(row["hf_row"].(float64))
	tensor := s.tensors[name]
	_, length := rows(tensor.shape)
	if len(tensor.shape) == 1 { // a vector's only row
		at = 0
		values := make([]float32, tensor.shape[0])
		if err := s.Read(name, 0, tensor.shape[0], values); err != nil {
			t.Fatal(err)
		}
		compareGoldenRow(t, name, row, values)
		return
	}
	values := make([]float32, length)
	if err := s.Read(name, at, at+1, values); err != nil {
		t.Fatal(err)
	}
	compareGoldenRow(t, name, row, values)
	e := encodings[tensor.dtype]
	first := tensor.data[tensor.storedRow1(at)*(length/e.blockLen*e.blockBytes):][:e.blockBytes]
	if want, ok := row["first_block_hex"].(string); ok && e.blockLen > 1 && hex.EncodeToString(first) != want {
		t.Errorf("%s row %d: first block %x, want %s", name, at, first, want)
	}
}

func compareGoldenRow(t *testing.T, name string, row map[string]any, values []float32) {
	t.Helper()
	compare := func(key string, got []float32) {
		list, ok := row[key].([]any)
		if !ok {
			return
		}
		for i, v := range list {
			if want := float32(v.(float64)); got[i] != want {
				t.Errorf("%s %s[%d]: %v, want %v", name, key, i, got[i], want)
			}
		}
	}
	compare("first_8", values)
	compare("last_4", values[max(0, len(values)-4):])
	compare("values", values)
	if want, ok := row["sum"].(float64); ok {
		var sum float64
		for _, v := range values {
			sum += float64(v)
		}
		if math.Abs(sum-want) > 1e-6 {
			t.Errorf("%s: row sum %v, want %v", name, sum, want)
		}
	}
}

// storedRow1 is storedRow for every tensor.
func (t tensor) storedRow1(row int64) int64 {
	if t.ropePairs == 0 {
		return row
	}
	return t.storedRow(row)
}
