package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// smollmGolden has the parts of smollm2-expected.json that concern weights.
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

// smollmFile returns the GGUF file that `make gsm8k` downloads, or skips the test.
func smollmFile(t *testing.T) string {
	t.Helper()
	path := os.Getenv("MGRPO_SMOLLM2_GGUF")
	if path == "" {
		path = filepath.Join("..", "..", "..", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("golden: smollm2: SmolLM2-135M-Instruct.Q4_1.gguf absent")
	}
	return path
}

func TestGoldenSmolLM2(t *testing.T) {
	path := smollmFile(t)
	var want smollmGolden
	golden.Read(t, "models", "smollm2-expected.json", &want)
	s := openChecked(t, path)

	c, w := s.Config(), want.Config
	if c.VocabSize != w.Vocab || c.Hidden != w.Hidden || c.FFN != w.FFN || c.Layers != w.Layers || c.Heads != w.Heads || c.KVHeads != w.KVHeads ||
		c.HeadDim != w.HeadDim || c.Rope.Theta != w.Theta || c.RMSEps != w.Eps || c.Tied != w.Tied || c.Family != arch.Llama || c.Rope.Scaling != nil {
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

// checkGoldenRow compares both ends of one dequantised row bit for bit, and the stored bytes of its first block. A vector has one row.
func checkGoldenRow(t *testing.T, s *Source, row map[string]any) {
	t.Helper()
	name, at := row["hf"].(string), int64(row["hf_row"].(float64))
	tensor := s.tensors[name]
	_, length := rows(tensor.shape)
	values := make([]float32, length)
	if len(tensor.shape) == 1 {
		values = readAll(t, s, name)
	} else if err := s.Read(name, at, at+1, values); err != nil {
		t.Fatal(err)
	}
	for i, v := range row["first_8"].([]any) {
		if float64(values[i]) != v {
			t.Errorf("%s row %d: value %d is %v, want %v", name, at, i, values[i], v)
		}
	}
	for i, v := range row["last_8"].([]any) {
		if got := float64(values[len(values)-8+i]); got != v {
			t.Errorf("%s row %d: value %d from the end is %v, want %v", name, at, 8-i, got, v)
		}
	}
	stored := at
	if !tensor.inOrder() {
		stored = tensor.storedRow(at)
	}
	if want := int64(row["gguf_row"].(float64)); stored != want {
		t.Errorf("%s row %d is read from row %d, want %d", name, at, stored, want)
	}
	e := encodings[tensor.dtype]
	start := stored * (length / e.blockLen * e.blockBytes)
	want, err := hex.DecodeString(row["first_block_hex"].(string))
	if err != nil || !bytes.HasPrefix(tensor.data[start:], want) {
		t.Errorf("%s row %d starts with %x, want %x", name, at, tensor.data[start:][:len(want)], want)
	}
}

// ggufWriter builds small GGUF files.
type ggufWriter struct {
	keys, list, data []byte
	keyCount         uint64
	tensors          uint64
}

func ggufString8(dst []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(len(s))), s...)
}

func (w *ggufWriter) key(name string, kind uint32, value []byte) {
	w.keys = append(binary.LittleEndian.AppendUint32(ggufString8(w.keys, name), kind), value...)
	w.keyCount++
}

func (w *ggufWriter) u32(name string, v uint32) {
	w.key(name, ggufUint32, binary.LittleEndian.AppendUint32(nil, v))
}
func (w *ggufWriter) f32(name string, v float32) {
	w.key(name, ggufFloat32, binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
}
func (w *ggufWriter) text(name, v string) { w.key(name, ggufString, ggufString8(nil, v)) }

// tensor adds a tensor of the given type number; shape is rows first.
func (w *ggufWriter) tensor(name string, kind uint32, data []byte, shape ...int64) {
	w.list = binary.LittleEndian.AppendUint32(ggufString8(w.list, name), uint32(len(shape)))
	for _, n := range slices.Backward(shape) {
		w.list = binary.LittleEndian.AppendUint64(w.list, uint64(n))
	}
	w.list = binary.LittleEndian.AppendUint32(w.list, kind)
	w.list = binary.LittleEndian.AppendUint64(w.list, uint64(len(w.data)))
	w.data = append(w.data, data...)
	for len(w.data)%32 != 0 {
		w.data = append(w.data, 0)
	}
	w.tensors++
}

func (w *ggufWriter) bytes() []byte {
	file := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
	file = binary.LittleEndian.AppendUint64(file, w.tensors)
	file = binary.LittleEndian.AppendUint64(file, w.keyCount)
	file = append(append(file, w.keys...), w.list...)
	for len(file)%32 != 0 {
		file = append(file, 0)
	}
	return append(file, w.data...)
}

func (w *ggufWriter) architecture(c arch.Config) {
	arch := strings.ReplaceAll(strings.TrimSuffix(c.Family, "_text"), "_", "")
	if c.Windows != nil {
		w.u32(arch+".attention.sliding_window", uint32(slices.Max(c.Windows)))
		w.f32(arch+".rope.freq_base_swa", float32(c.Rope.LocalTheta))
	}
	if m := c.Mixture; m != nil {
		w.u32(arch+".expert_count", uint32(m.Experts))
		w.u32(arch+".expert_used_count", uint32(m.PerToken))
		w.u32(arch+".expert_feed_forward_length", uint32(m.FFN))
	}
	w.text("general.architecture", arch)
	w.u32(arch+".embedding_length", uint32(c.Hidden))
	w.u32(arch+".block_count", uint32(c.Layers))
	w.u32(arch+".attention.head_count", uint32(c.Heads))
	w.u32(arch+".attention.head_count_kv", uint32(c.KVHeads))
	w.u32(arch+".attention.key_length", uint32(c.HeadDim))
	w.u32(arch+".feed_forward_length", uint32(c.FFN))
	w.u32(arch+".context_length", uint32(c.MaxPosition))
	w.f32(arch+".attention.layer_norm_rms_epsilon", float32(c.RMSEps))
	w.f32(arch+".rope.freq_base", float32(c.Rope.Theta))
	w.u32("tokenizer.ggml.bos_token_id", 1)
	w.u32("tokenizer.ggml.eos_token_id", 2)
	w.u32("tokenizer.ggml.padding_token_id", math.MaxUint32)
}

// ggufOf writes the tensors of a model that are in weights as F32. For llama, query and key rows are interleaved. Experts are stacked.
func ggufOf(c arch.Config, weights map[string][]float32) *ggufWriter {
	w, stacks := &ggufWriter{}, map[string][]float32{}
	w.architecture(c)
	for _, t := range c.Layout().Tensors() {
		values, ok := weights[t.Name]
		if !ok {
			continue
		}
		if t.Stack > 0 {
			stacked := slices.Concat(stacks[t.GGUF], values)
			if stacks[t.GGUF] = stacked; t.Index == t.Stack-1 {
				w.tensor(t.GGUF, 0, encodeAs(nil, F32, stacked), append([]int64{t.Stack}, t.Shape...)...)
			}
			continue
		}
		if c.Family == arch.Llama && (strings.Contains(t.Name, "q_proj") || strings.Contains(t.Name, "k_proj")) {
			values = interleaveHeads(values, int(t.Shape[0]), c.HeadDim)
		}
		w.tensor(t.GGUF, 0, encodeAs(nil, F32, ggufValues(c, t.Name, values)), t.Shape...)
	}
	return w
}

// ggufValues returns the values that a GGUF file has for a tensor: Gemma's norms are stored as 1 + w.
func ggufValues(c arch.Config, name string, values []float32) []float32 {
	if c.Family != arch.Gemma3 || !strings.HasSuffix(name, "norm.weight") && !strings.HasSuffix(name, "layernorm.weight") {
		return values
	}
	stored := slices.Clone(values)
	for i := range stored {
		stored[i]++
	}
	return stored
}

// interleaveHeads reorders rows as GGUF llama files have them: reshape(heads, 2, dim/2), swap, flatten.
func interleaveHeads(values []float32, count, headDim int) []float32 {
	length := len(values) / count
	var out []float32
	for head := 0; head < count; head += headDim {
		for j := range headDim / 2 {
			for half := range 2 {
				row := head + half*headDim/2 + j
				out = append(out, values[row*length:(row+1)*length]...)
			}
		}
	}
	return out
}

func writeGGUF(t *testing.T, w *ggufWriter) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	writeFile(t, path, w.bytes())
	return path
}

func TestGGUFFamilies(t *testing.T) {
	for _, family := range []string{arch.Llama, arch.Qwen2, arch.Qwen3, arch.Qwen3MoE, arch.Gemma3} {
		cfg := tinyConfig(family)
		cfg.Tied = family == arch.Qwen3 || family == arch.Gemma3
		cfg.AttentionBias = family == arch.Llama // biases are interleaved too
		if family == arch.Gemma3 {               // the sixth of 7 layers has no window
			cfg.Layers, cfg.Rope.LocalTheta = 7, 5000
			cfg.Windows = []int{8, 8, 8, 8, 8, 0, 8}
		}
		weights, _ := randomWeights(cfg, 3)
		for _, values := range weights { // so that 1 + w is exact
			for i, v := range values {
				values[i] = float32(math.Round(float64(v)*1024) / 1024)
			}
		}
		s := openChecked(t, writeGGUF(t, ggufOf(cfg, weights)))
		got := s.Config()
		got.RMSEps = cfg.RMSEps // stored as float32
		if !reflect.DeepEqual(got, cfg) {
			t.Errorf("config %+v, want %+v", got, cfg)
		}
		for name, want := range weights {
			if !slices.Equal(readAll(t, s, name), want) {
				t.Errorf("%s: %s differs", family, name)
			}
			shape, _, _ := s.Info(name)
			stored := make([]byte, 4*len(want))
			if err := s.Blocks(name, 0, shape[0], stored); err != nil || !bytes.Equal(stored, encodeAs(nil, F32, ggufValues(cfg, name, want))) {
				t.Errorf("%s: the blocks of %s differ: %v", family, name, err)
			}
			if s.Blocks(name, 0, shape[0]+1, stored) == nil || s.Blocks(name, 0, shape[0], stored[1:]) == nil {
				t.Errorf("%s: %s: rows and bytes disagree", family, name)
			}
		}
		if _, ok := s.Bytes("model.layers.0.self_attn.q_proj.weight"); ok != (family != arch.Llama) {
			t.Errorf("%s: raw bytes of q_proj: %v", family, ok)
		}
	}
}

// TestGGUFGemma3 reads the keys of windows and of the query scale as llama.cpp does, and refuses other values.
func TestGGUFGemma3(t *testing.T) {
	for _, c := range []struct {
		name    string
		layers  int
		change  func(w *ggufWriter)
		windows []int
		scalar  float64
		fault   string
	}{
		{"no window", 2, func(w *ggufWriter) {}, nil, 0, ""},
		{"pattern", 3, func(w *ggufWriter) {
			w.u32("gemma3.attention.sliding_window", 8)
			w.u32("gemma3.attention.sliding_window_pattern", 2)
		}, []int{8, 0, 8}, 0, ""},
		{"list", 2, func(w *ggufWriter) {
			w.u32("gemma3.attention.sliding_window", 8)
			w.key("gemma3.attention.sliding_window_pattern", ggufArray, append([]byte{ggufBool, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}, 0, 1))
		}, []int{0, 8}, 0, ""},
		{"27B", 62, func(w *ggufWriter) {}, nil, 8, ""},
		{"short list", 3, func(w *ggufWriter) {
			w.key("gemma3.attention.sliding_window_pattern", ggufArray, append([]byte{ggufBool, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}, 0, 1))
		}, nil, 0, "sliding_window_pattern lists 2 layers, but the model has 3"},
		{"capped", 2, func(w *ggufWriter) { w.f32("gemma3.final_logit_softcapping", 30) }, nil, 0, "final_logit_softcapping 30"},
	} {
		cfg := tinyConfig(arch.Gemma3)
		cfg.Layers, cfg.Tied = c.layers, true
		if c.layers == 62 {
			cfg.Hidden = 16
		}
		weights, _ := randomWeights(cfg, 3)
		w := ggufOf(cfg, weights)
		c.change(w)
		s, err := Open(writeGGUF(t, w))
		if c.fault != "" {
			golden.WantError(t, err, c.fault)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got := s.Config(); !slices.Equal(got.Windows, c.windows) || got.Queries.Scalar != c.scalar {
			t.Errorf("%s: windows %v and scalar %g, want %v and %g", c.name, got.Windows, got.Queries.Scalar, c.windows, c.scalar)
		}
	}
}

func TestGGUFRopeFactors(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	cfg.HeadDim, cfg.Rope.Theta = 64, 500000
	weights, _ := randomWeights(cfg, 3)
	scaled := cfg
	scaled.Rope.Scaling = &arch.RopeLlama3{Factor: 32, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPosition: 8192}
	factors := make([]float32, 32)
	plain, _ := cfg.Layer(0).Rotary()
	slow, _ := scaled.Layer(0).Rotary()
	for i, f := range slow.Frequencies() {
		factors[i] = float32(plain.Frequencies()[i] / f)
	}
	w := ggufOf(cfg, weights)
	w.tensor(arch.GGUFRopeFactors, 0, encodeAs(nil, F32, factors), 32)
	s := openChecked(t, writeGGUF(t, w))
	if got, _ := s.Config().Rope.Scaling.(*arch.RopeLlama3); got == nil || math.Abs(got.Factor-32) > 1e-3 || got.OriginalMaxPosition != 8192 {
		t.Errorf("%+v", got)
	}
	factors[16] *= 1.01
	w = ggufOf(cfg, weights)
	w.tensor(arch.GGUFRopeFactors, 0, encodeAs(nil, F32, factors), 32)
	_, err := Open(writeGGUF(t, w))
	golden.WantError(t, err, arch.GGUFRopeFactors)
}

// Files may have the gate and up projections of all experts as one tensor (convert_hf_to_gguf.py --fuse-gate-up-exps).
func TestGGUFFusedExperts(t *testing.T) {
	cfg := tinyConfig(arch.Qwen3MoE)
	weights, _ := randomWeights(cfg, 3)
	others := maps.Clone(weights)
	fused := make([][]float32, cfg.Layers)
	for layer := range fused {
		for expert := range cfg.Mixture.Experts {
			for _, part := range []string{"gate", "up"} {
				name := fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, expert, part)
				fused[layer] = append(fused[layer], weights[name]...)
				delete(others, name)
			}
		}
	}
	w := ggufOf(cfg, others)
	for layer, values := range fused {
		w.tensor(fmt.Sprintf("blk.%d.ffn_gate_up_exps.weight", layer), 0, encodeAs(nil, F32, values),
			int64(cfg.Mixture.Experts), int64(2*cfg.Mixture.FFN), int64(cfg.Hidden))
	}
	s := openChecked(t, writeGGUF(t, w))
	for name, want := range weights {
		if !slices.Equal(readAll(t, s, name), want) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestGGUFRefused(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	weights, _ := randomWeights(cfg, 3)
	for _, c := range []struct {
		change func(w *ggufWriter)
		want   []string
	}{
		{func(w *ggufWriter) { w.text("general.architecture", "x") }, []string{"general.architecture", "twice"}},
		{func(w *ggufWriter) { *w = ggufWriter{}; w.text("general.architecture", "gemma2") }, []string{"general.architecture", "gemma2"}},
		{func(w *ggufWriter) { *w = ggufWriter{}; w.u32("general.architecture", 3) }, []string{"general.architecture", "string"}},
		{func(w *ggufWriter) { *w = ggufWriter{}; w.text("general.architecture", "llama") }, []string{"llama.embedding_length", "missing"}},
		{func(w *ggufWriter) { w.u32("llama.expert_count", 8) }, []string{"llama.expert_count"}},
		{func(w *ggufWriter) { w.u32("split.count", 2) }, []string{"split.count"}},
		{func(w *ggufWriter) { w.text("llama.rope.scaling.type", "longrope") }, []string{"rope.scaling.type", "longrope"}},
		{func(w *ggufWriter) { w.u32("llama.rope.dimension_count", 2) }, []string{"llama.rope.dimension_count"}},
		{func(w *ggufWriter) { w.u32("llama.vocab_size", 99) }, []string{"vocab_size", "99"}},
		{func(w *ggufWriter) { w.u32("general.alignment", 33) }, []string{"general.alignment"}},
		{func(w *ggufWriter) { w.tensor("blk.0.ffn_gate_exps.weight", 0, make([]byte, 4), 1) }, []string{"blk.0.ffn_gate_exps.weight", "unexpected"}},
		{func(w *ggufWriter) { w.tensor("blk.00.attn_q.weight", 0, make([]byte, 4), 1) }, []string{"blk.00.attn_q.weight"}},
		{func(w *ggufWriter) { w.tensor("blk.2.attn_q.weight", 0, make([]byte, 4), 1) }, []string{"blk.2.attn_q.weight"}},
		{func(w *ggufWriter) { w.tensor("token_embd.weight", 0, make([]byte, 4), 1) }, []string{"token_embd.weight", "twice"}},
		{func(w *ggufWriter) { w.tensor("blk.1.attn_q.bias", 10, make([]byte, 84), 256) }, []string{"blk.1.attn_q.bias", "Q2_K"}},
		{func(w *ggufWriter) { w.tensor("blk.1.attn_q.bias", 99, make([]byte, 84), 256) }, []string{"blk.1.attn_q.bias", "99"}},
		{func(w *ggufWriter) { w.tensor("blk.1.attn_q.bias", 8, make([]byte, 34), 1, 33) }, []string{"blk.1.attn_q.bias", "Q8_0", "32"}},
		{func(w *ggufWriter) { w.tensor("blk.1.attn_q.bias", 0, nil, 1<<62) }, []string{"blk.1.attn_q.bias", "shape"}},
		{func(w *ggufWriter) { w.tensor("blk.1.attn_q.bias", 0, nil, 1<<20) }, []string{"blk.1.attn_q.bias", "past the end"}},
		{func(w *ggufWriter) { w.tensor("blk.1.attn_q.bias", 0, make([]byte, 12), 3) }, []string{"blk.1.attn_q.bias", "unexpected"}},
		{func(w *ggufWriter) {
			others := maps.Clone(weights)
			delete(others, "model.layers.1.self_attn.q_proj.weight")
			*w = *ggufOf(cfg, others)
			w.tensor("blk.1.attn_q.weight", 0, make([]byte, 12), 3)
		}, []string{"blk.1.attn_q.weight", "heads"}},
		{func(w *ggufWriter) {
			others := maps.Clone(weights)
			delete(others, "model.norm.weight")
			*w = *ggufOf(cfg, others)
			w.tensor("output_norm.weight", 0, make([]byte, 12), 3)
		}, []string{"model.norm.weight has shape [3], the metadata requires"}},
		{func(w *ggufWriter) { w.tensor("x", 0, nil, 1, 1, 1, 1, 1) }, []string{"x", "dimensions"}},
		{func(w *ggufWriter) { w.key("a", 77, nil) }, []string{"a", "77"}},
		{func(w *ggufWriter) { w.key("a", ggufArray, []byte{9, 0, 0, 0}) }, []string{"array"}},
		{func(w *ggufWriter) {
			w.key("a", ggufArray, append([]byte{0, 0, 0, 0}, 255, 255, 255, 255, 255, 255, 255, 127))
		}, []string{"a", "array"}},
		{func(w *ggufWriter) { w.keys = w.keys[:len(w.keys)-1] }, nil},
		{func(w *ggufWriter) { w.data = w.data[:len(w.data)-32] }, []string{"past the end"}},
		{func(w *ggufWriter) { w.keyCount = 1 << 60 }, []string{"announces"}},
		{func(w *ggufWriter) { w.tensors = 1 << 60 }, []string{"announces"}},
	} {
		w := ggufOf(cfg, weights)
		c.change(w)
		path := writeGGUF(t, w)
		before := allocated()
		_, err := openAndCheck(path)
		golden.WantError(t, err, append(c.want, path)...)
		if used := allocated() - before; used > 16<<20 {
			t.Errorf("%v: allocated %d bytes", c.want, used)
		}
	}
}

func FuzzGGUF(f *testing.F) {
	cfg := tinyConfig(arch.Llama)
	weights, _ := randomWeights(cfg, 3)
	f.Add(ggufOf(cfg, weights).bytes())
	f.Add((&ggufWriter{}).bytes())
	f.Fuzz(func(t *testing.T, file []byte) {
		meta, tensors, err := parseGGUF(file)
		if err != nil {
			return
		}
		cfg, err := ggufConfig(meta, tensors)
		if err != nil {
			return
		}
		o := newOpener("")
		o.config = cfg
		if o.addGGUF(tensors) != nil {
			return
		}
		s := o.source()
		for name := range s.tensors {
			readAll(t, s, name)
		}
	})
}

// forwardPass returns the parts of a configuration that determine the forward pass, rounded
// like the numbers of GGUF files, and the frequencies of each layer.
func forwardPass(c arch.Config) (arch.Config, [][]float64) {
	var frequencies [][]float64
	for i := range c.Layers {
		rotary, _ := c.Layer(i).Rotary()
		frequencies = append(frequencies, rotary.Frequencies())
	}
	c.Tokens.BOS, c.Tokens.EOS, c.Tokens.Pad, c.Raw, c.Rope.Scaling = nil, nil, nil, nil, nil
	c.RMSEps = float64(float32(c.RMSEps))
	return c, frequencies
}

// TestConvertedGGUF reads files that gguf-py wrote under llama.cpp's names, and checks that they have the values and the
// architecture of their folders. With these files llama.cpp sampled the same tokens as transformers (bench/goldens/gguf_files.py).
func TestConvertedGGUF(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "gguf", "*.gguf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".gguf")
		made, err := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "*", name, "config.json"))
		if err != nil || len(made) != 1 {
			t.Fatalf("%s was made from %v: %v", file, made, err)
		}
		folder, converted := openChecked(t, filepath.Dir(made[0])), openChecked(t, file)
		if want, _, err := folder.Config().GGUF(); err != nil { // GGUF files of such models can only be read
			got, turns := forwardPass(converted.Config())
			want, wantTurns := forwardPass(folder.Config())
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(turns, wantTurns) {
				t.Errorf("%s: %+v %v, want %+v %v", name, got, turns, want, wantTurns)
			}
		} else if got, _, err := converted.Config().GGUF(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %v, want %v", name, got, err, want)
		}
		if !slices.Equal(converted.Names(), folder.Names()) {
			t.Errorf("%s has other tensors", name)
		}
		for _, tensor := range folder.Names() {
			got, want := readAll(t, converted, tensor), readAll(t, folder, tensor)
			same := func(a, b float32) bool { // the file stores the exponential of A_log, rounded
				return a == b || strings.HasSuffix(tensor, ".A_log") && math.Abs(float64(a-b)) < 1e-6
			}
			if !slices.EqualFunc(got, want, same) {
				t.Errorf("%s: %s differs: %v, want %v", name, tensor, got, want)
			}
		}
	}
}
