package weights

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

func TestOpenRefusesOthers(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "model.txt")
	writeFile(t, text, nil)
	for path, want := range map[string]string{filepath.Join(dir, "absent"): "absent", text: "model.txt"} {
		_, err := Open(path)
		golden.WantError(t, err, want)
	}
	writeFile(t, filepath.Join(dir, configFile), []byte(`{"model_type":"llama"}`))
	if err := os.Mkdir(filepath.Join(dir, safetensorsFile), 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir)
	golden.WantError(t, err, safetensorsFile, "regular file")
}

// A clone without Git LFS has pointers in place of large files.
func TestOpenRefusesPointers(t *testing.T) {
	for _, file := range []string{configFile, generationFile, safetensorsFile, safetensorsIndex, binFile, "model.gguf"} {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, configFile), []byte(`{"model_type":"llama"}`))
		writeFile(t, filepath.Join(dir, file), []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"))
		if file == "model.gguf" {
			dir = filepath.Join(dir, file)
		}
		_, err := Open(dir)
		golden.WantError(t, err, file, "git lfs pull")
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, adapterConfigFile), []byte(`{"peft_type":"LORA","target_modules":["q_proj"]}`))
	writeFile(t, filepath.Join(dir, adapterFile), []byte("version https://git-lfs.github.com/spec/v1\n"))
	_, err := ReadAdapter(dir, tinyConfig(arch.Llama))
	golden.WantError(t, err, adapterFile, "git lfs pull")
}

// A folder without a model names what else it has.
func TestOpenNamesOtherFolders(t *testing.T) {
	for file, want := range map[string]string{adapterConfigFile: "--adapter", "[1]-Q8_0.gguf": "GGUF file", "checkpoint-20/config.json": "checkpoint-20"} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o777); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, file), []byte("{}"))
		_, err := Open(dir)
		golden.WantError(t, err, configFile, want, file)
	}
	for _, file := range []string{configFile, "main/adapter_config.json"} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o777); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, file), []byte("{}"))
		_, err := ReadAdapter(dir, tinyConfig(arch.Llama))
		golden.WantError(t, err, adapterConfigFile, "the folder has none", file)
	}
}

// transformers applies an adapter that is in the folder of a model. mgrpo does not, and adds a note.
func TestOpenNotesAdapter(t *testing.T) {
	dir, values := writeTiny(t, tinyConfig(arch.Llama), F32)
	writeFile(t, filepath.Join(dir, adapterConfigFile), []byte("{}"))
	expectSame(t, dir, values, "also has an adapter")
}

func TestReadRows(t *testing.T) {
	cfg := tinyConfig(arch.Qwen3)
	for _, dtype := range []DType{F32, BF16, F16} {
		dir, weights := writeTiny(t, cfg, dtype)
		s := openChecked(t, dir)
		const name = "model.embed_tokens.weight"
		all := readAll(t, s, name)
		for i, v := range all {
			if want := weights[name][i]; math.Abs(float64(v-want)) > map[DType]float64{F32: 0, BF16: 1.0 / 256, F16: 1.0 / 2048}[dtype]*math.Abs(float64(want)) {
				t.Fatalf("%s value %d: %v, want %v", dtype, i, v, want)
			}
		}
		part := make([]float32, 3*cfg.Hidden)
		if err := s.Read(name, 4, 7, part); err != nil || !slices.Equal(part, all[4*cfg.Hidden:7*cfg.Hidden]) {
			t.Errorf("rows 4 to 6: %v", err)
		}
		raw, ok := s.Bytes(name)
		if !ok || !slices.Equal(raw, encodeAs(nil, dtype, all)) {
			t.Errorf("%s: raw bytes differ", dtype)
		}
		golden.WantError(t, s.Read(name, 4, 7, part[:5]), name, "24 values")
		golden.WantError(t, s.Read(name, -1, 2, part), name, "rows -1")
		golden.WantError(t, s.Read(name, 2, 1, part), name, "rows 2 to 1")
		golden.WantError(t, s.Read(name, 9, 12, part), name, "of 11")
		golden.WantError(t, s.Read("x", 0, 1, part), "x")
	}
}

// TestReadTruncated cuts a mapped file: a read must return an error and must not kill the process.
func TestReadTruncated(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	cfg.VocabSize = 1 << 14
	dir, _ := writeTiny(t, cfg, F32)
	s := openChecked(t, dir)
	if err := os.Truncate(filepath.Join(dir, safetensorsFile), 4096); err != nil {
		t.Fatal(err)
	}
	buffer := make([]float32, cfg.Hidden)
	golden.WantError(t, s.Read("model.embed_tokens.weight", int64(cfg.VocabSize)-1, int64(cfg.VocabSize), buffer), "model.embed_tokens.weight", "cut short")
	golden.WantError(t, s.Check(), "cut short")
}

// TestCheckFaults changes one value or tensor of a valid folder at a time.
func TestCheckFaults(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	weights, _ := randomWeights(cfg, 7)
	for _, c := range []struct {
		name string
		at   int
		bits uint32
		want string
	}{
		{"model.embed_tokens.weight", 5, 0x7fc00000, "NaN at element 5"},
		{"lm_head.weight", 87, 0x7f800000, "+Inf at element 87"},
		{"model.layers.1.mlp.down_proj.weight", 0, 0xff800000, "-Inf at element 0"},
	} {
		values := slices.Clone(weights[c.name])
		values[c.at] = math.Float32frombits(c.bits)
		dir := filepath.Join(t.TempDir(), "m")
		read := func(name string, dst []float32) error {
			if name == c.name {
				copy(dst, values)
			} else {
				copy(dst, weights[name])
			}
			return nil
		}
		if err := (HF{Config: cfg, Read: read}).WriteFolder(dir, F32, nil); err != nil {
			t.Fatal(err)
		}
		_, err := openAndCheck(dir)
		golden.WantError(t, err, dir, c.name, c.want)
	}

	dir, _ := writeTiny(t, cfg, F32)
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.config.FFN = 7
	golden.WantError(t, s.Check(), "model.layers.0.mlp.gate_proj.weight", "[6 8]", "[7 8]")
	s.config.FFN, s.config.Layers = cfg.FFN, 40
	err = s.Check()
	golden.WantError(t, err, "model.layers.2.input_layernorm.weight", "missing", "and 334 more")
	if strings.Count(err.Error(), "missing") > maxReported {
		t.Error("error lists everything")
	}
}

// tiedFile writes a tied model's folder whose file also has extra tensors.
func tiedFile(t *testing.T, extra map[string][]float32) string {
	t.Helper()
	cfg := tinyConfig(arch.Llama)
	cfg.Tied = true
	dir, weights := writeTiny(t, cfg, F32)
	var out []OutTensor
	add := func(name string, shape []int64, values []float32) {
		if values == nil {
			values = weights[name]
		}
		out = append(out, OutTensor{name, string(F32), shape, F32.Size() * int64(len(values)), func(w io.Writer) error { return WriteFloats(w, F32, values) }})
	}
	for _, spec := range cfg.Layout().Tensors() {
		add(spec.Name, spec.Shape, nil)
	}
	for name, values := range extra {
		if values == nil {
			values = weights["model.embed_tokens.weight"]
		}
		add(name, []int64{int64(len(values) / cfg.Hidden), int64(cfg.Hidden)}, values)
	}
	if err := os.Remove(filepath.Join(dir, safetensorsFile)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, safetensorsFile))
	if err == nil {
		err = WriteSafetensors(f, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return dir
}

func TestCheckTiedHead(t *testing.T) {
	s := openChecked(t, tiedFile(t, map[string][]float32{"lm_head.weight": nil}))
	if slices.Contains(s.Names(), "lm_head.weight") || len(s.Notes()) != 1 || !strings.Contains(s.Notes()[0], "lm_head.weight") {
		t.Errorf("names %v, notes %q", s.Names(), s.Notes())
	}
	cfg := s.Config()
	_, err := openAndCheck(tiedFile(t, map[string][]float32{"lm_head.weight": make([]float32, cfg.VocabSize*cfg.Hidden)}))
	golden.WantError(t, err, "lm_head.weight", "tie_word_embeddings")
	_, err = openAndCheck(tiedFile(t, map[string][]float32{"lm_head.weight": make([]float32, cfg.Hidden)}))
	golden.WantError(t, err, "lm_head.weight", "tie_word_embeddings")
	s = openChecked(t, tiedFile(t, map[string][]float32{"model.layers.0.self_attn.rotary_emb.inv_freq": make([]float32, cfg.Hidden)}))
	if len(s.Notes()) != 1 {
		t.Errorf("notes %q", s.Notes())
	}
}

// TestUnaligned reads tensors that start at odd bytes.
func TestUnaligned(t *testing.T) {
	header := `{"w": {"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}}`
	file := safetensorsBytes(header, 4)
	binary.LittleEndian.PutUint32(file[len(file)-4:], math.Float32bits(1.5))
	entries, data, err := parseSafetensors(file)
	if err != nil || (8+len(header))%4 == 0 {
		t.Fatal(err, len(header))
	}
	v, err := newTensor(entries[0].shape, F32, data)
	dst := make([]float32, 1)
	if err != nil || v.read(0, 1, dst) != nil || dst[0] != 1.5 {
		t.Error(err, dst)
	}
}
