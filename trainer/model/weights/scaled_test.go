package weights

import (
	"encoding/json"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// quantFolders has the files that testdata/quant/folders.py writes.
var quantFolders = filepath.Join("..", "..", "..", "testdata", "quant")

// TestCodes compares each code of the number formats with torch's value.
func TestCodes(t *testing.T) {
	var values map[DType][]*float64
	golden.Read(t, "quant", "codes.json", &values)
	for _, c := range []struct {
		dtype DType
		codes int
	}{{F8_E4M3, 256}, {F8_E8M0, 256}, {MXFP4, 16}} {
		if len(values[c.dtype]) != c.codes {
			t.Fatalf("%s has %d codes", c.dtype, len(values[c.dtype]))
		}
		for code, want := range values[c.dtype] {
			src, got := []byte{byte(code)}, make([]float32, 1)
			if c.dtype == MXFP4 {
				src[0], got = byte(code|15<<4), make([]float32, 2) // the low half has the earlier value
			}
			encodings[c.dtype].decode(got, src)
			if want == nil && got[0] == got[0] || want != nil && float64(got[0]) != *want {
				t.Errorf("%s %d is %g, want %v", c.dtype, code, got[0], want)
			}
			if c.dtype == MXFP4 && got[1] != -6 {
				t.Errorf("the high half of %d is %g", src[0], got[1])
			}
		}
	}
}

// TestQuantisedFolders compares the values read from quantised folders with the values that the
// libraries compute, and saved values with their rounding to BF16.
func TestQuantisedFolders(t *testing.T) {
	folders, err := filepath.Glob(filepath.Join(quantFolders, "folders", "*"))
	if err != nil || len(folders) < 6 {
		t.Fatalf("%v %v", folders, err)
	}
	for _, dir := range folders {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			src := openChecked(t, dir)
			expected, err := OpenTensors(filepath.Join(dir, "expected.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			defer expected.Close()
			saved := filepath.Join(t.TempDir(), "saved")
			read := func(name string, dst []float32) error { return copyOf(dst, readAll(t, src, name)) }
			if err := (HF{Config: src.Config(), Read: read}).WriteFolder(saved, src.DType(), nil); err != nil {
				t.Fatal(err)
			}
			again := openChecked(t, saved)
			if again.Config().Quantisation != nil || again.DType() != BF16 {
				t.Errorf("saved with %+v as %s", again.Config().Quantisation, again.DType())
			}
			for _, name := range expected.Names() {
				_, shape, _ := expected.Info(name)
				want, n := make([]float32, shape[0]*shape[1]), shape[0]
				if err := expected.Read(name, 0, n, want); err != nil {
					t.Fatal(err)
				}
				if got := readAll(t, src, name); !slices.Equal(got, want) {
					t.Errorf("%s: other values", name)
				}
				some := make([]float32, 3*shape[1])
				if err := src.Read(name, 15, 18, some); err != nil || !slices.Equal(some, want[15*shape[1]:18*shape[1]]) {
					t.Errorf("%s: values in rows 15 to 17 differ, %v", name, err)
				}
				decodeBF16(want, encodeAs(nil, BF16, want))
				if got := readAll(t, again, name); !slices.Equal(got, want) {
					t.Errorf("%s: the saved values differ", name)
				}
			}
		})
	}
}

func copyOf(dst, src []float32) error {
	copy(dst, src)
	return nil
}

// packedName is the name of a [6, 8] matrix of a tiny model, which tests pack.
const packedName = "model.layers.1.mlp.up_proj.weight"

// packedFolder writes a tiny model with the given tensors in place of packedName, and with a quantization_config.
func packedFolder(t *testing.T, quantisation string, tensors ...stored) string {
	t.Helper()
	dir, _ := restore(t, tinyConfig("llama"), func(all []stored) []stored {
		return append(slices.DeleteFunc(all, func(s stored) bool { return s.name == packedName }), tensors...)
	})
	path := filepath.Join(dir, configFile)
	object := readObject(t, path)
	object["quantization_config"] = json.RawMessage(quantisation)
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, data)
	return dir
}

// TestHostileScales opens folders whose packed tensors and scales do not match.
func TestHostileScales(t *testing.T) {
	const fp8, blocks = `{"quant_method":"fp8"}`, `{"quant_method":"fp8","weight_block_size":[4,4]}`
	weight := stored{packedName, "F8_E4M3", []int64{6, 8}, make([]byte, 48)}
	scale := func(shape ...int64) stored {
		n, _ := numel(shape)
		return stored{packedName + "_scale_inv", "F32", shape, make([]byte, 4*n)}
	}
	nan := stored{packedName, "F8_E4M3", []int64{6, 8}, slices.Repeat([]byte{0x7f}, 48)}
	for what, c := range map[string]struct {
		quantisation string
		tensors      []stored
		want         string
	}{
		"no scales":         {fp8, []stored{weight}, "needs one tensor of scales"},
		"two scales":        {fp8, []stored{weight, scale(1), stored{packedName + "_scale", "BF16", []int64{1}, make([]byte, 2)}}, "there are 2"},
		"scales alone":      {fp8, []stored{scale(1)}, "missing"},
		"other blocks":      {blocks, []stored{weight, scale(2, 3)}, "[2 3]"},
		"one scale of many": {blocks, []stored{weight, scale(1)}, "4 × 4"},
		"too many scales":   {fp8, []stored{weight, scale(6, 8, 2)}, "[6 8 2]"},
		"no values":         {fp8, []stored{stored{packedName, "F8_E4M3", []int64{0, 8}, nil}, scale(0)}, "requires [6 8]"},
		"a vector":          {fp8, []stored{stored{packedName, "F8_E4M3", []int64{48}, make([]byte, 48)}, scale(1)}, "[48]"},
		"NaN":               {fp8, []stored{nan, scale(1)}, "NaN at element 0"},
		"packed otherwise":  {fp8, []stored{stored{packedName, "U8", []int64{6, 4}, make([]byte, 24)}}, "does not belong to a quantised matrix"},
		"blocks of 8":       {`{"quant_method":"mxfp4"}`, []stored{stored{"x_blocks", "U8", []int64{1, 1, 8}, make([]byte, 8)}, stored{"x_scales", "U8", []int64{1, 1}, []byte{1}}}, "16 bytes"},
		"blocks alone":      {`{"quant_method":"mxfp4"}`, []stored{stored{"x_blocks", "U8", []int64{1, 1, 16}, make([]byte, 16)}}, "x_scales"},
		"other scales":      {`{"quant_method":"mxfp4"}`, []stored{stored{"x_blocks", "U8", []int64{1, 1, 16}, make([]byte, 16)}, stored{"x_scales", "U8", []int64{1, 2}, []byte{1, 1}}}, "[1 2]"},
	} {
		src, err := Open(packedFolder(t, c.quantisation, c.tensors...))
		if err == nil {
			err = src.Check()
			src.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestMXFP4 pairs blocks with their scales and compares the values with transformers' values.
func TestMXFP4(t *testing.T) {
	file, err := OpenTensors(filepath.Join(quantFolders, "mxfp4.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const experts, rows, cols = 3, 5, 64
	o := newOpener("")
	o.config.Quantisation = &arch.Quantisation{Method: arch.QuantMXFP4}
	for _, end := range []string{blocksEnd, scalesEnd} {
		o.packed["experts.down_proj"+end] = file.tensors["experts.down_proj"+end]
	}
	if err := o.dequantise(); err != nil {
		t.Fatal(err)
	}
	want, got := make([]float32, experts*rows*cols), make([]float32, experts*rows*cols)
	if err := file.Read("expected", 0, experts, want); err != nil {
		t.Fatal(err)
	}
	all := o.tensors["experts.down_proj"]
	if err := all.read(0, experts, got); err != nil || !slices.Equal(got, want) {
		t.Errorf("other values in %v, %v", all.shape, err)
	}
	one, err := all.matrix(rows+2, []int64{2, cols}) // rows 2 and 3 of expert 1
	if err == nil {
		err = one.read(0, 2, got[:2*cols])
	}
	if err != nil || !slices.Equal(got[:2*cols], want[(rows+2)*cols:][:2*cols]) {
		t.Errorf("values in rows of an expert differ, %v", err)
	}
}

// TestStackedScales reads the matrices of fused experts. Each expert begins with a new block.
func TestStackedScales(t *testing.T) {
	const experts, rows, cols, block = 3, 5, 4, 2
	data, factors := make([]byte, experts*rows*cols), make([]float32, experts*3*2)
	for i := range factors {
		factors[i] = float32(i + 1)
	}
	for i := range data {
		data[i] = 0x38 // 1
	}
	s := &scales{factors: tensor{dtype: F32, data: encodeAs(nil, F32, factors)}, rows: block, cols: block, gridRows: 3, gridCols: 2, stacked: rows}
	all := tensor{shape: []int64{experts, rows, cols}, dtype: F8_E4M3, data: data, scales: s}
	one, err := all.matrix(2*rows+1, []int64{3, cols}) // rows 1 to 3 of the last expert
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 3*cols)
	if err := one.read(0, 3, got); err != nil {
		t.Fatal(err)
	}
	if want := []float32{13, 13, 14, 14, 15, 15, 16, 16, 15, 15, 16, 16}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	whole := make([]float32, rows*cols)
	if err := all.read(1, 2, whole); err != nil || whole[0] != 7 || whole[rows*cols-1] != 12 || math.IsNaN(float64(whole[1])) {
		t.Errorf("expert 1: %v %v", whole, err)
	}
}

// FuzzScaled opens folders of gpt-oss with any quantization_config and any weights. If a folder is accepted, it reads every tensor.
func FuzzScaled(f *testing.F) {
	cfg := tinyConfig(arch.GPTOSS)
	cfg.Layers, cfg.Hidden, cfg.FFN, cfg.Mixture = 1, 32, 32, &arch.Mixture{Experts: 2, PerToken: 1, FFN: 32, Normalise: true, Step: 1}
	plain, err := cfg.JSON("bfloat16")
	if err != nil {
		f.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(plain, &object); err != nil {
		f.Fatal(err)
	}
	const experts = "model.layers.0.mlp.experts."
	f.Add([]byte(`{"quant_method":"mxfp4"}`), safetensorsBytes(`{"`+experts+`gate_up_proj_blocks":{"dtype":"U8","shape":[2,64,1,16],"data_offsets":[0,2048]},"`+
		experts+`gate_up_proj_scales":{"dtype":"U8","shape":[2,64,1],"data_offsets":[2048,2176]},"`+experts+`gate_up_proj_bias":{"dtype":"BF16","shape":[2,64],"data_offsets":[2176,2432]}}`, 2432))
	f.Add([]byte(`{}`), safetensorsBytes(`{"`+experts+`down_proj":{"dtype":"F16","shape":[2,32,32],"data_offsets":[0,4096]}}`, 4096))
	f.Add([]byte(`{"quant_method":"fp8","weight_block_size":[3,5]}`), safetensorsBytes(`{"model.layers.0.self_attn.q_proj.weight":{"dtype":"F8_E4M3","shape":[8,32],"data_offsets":[0,256]},`+
		`"model.layers.0.self_attn.q_proj.weight_scale_inv":{"dtype":"F8_E8M0","shape":[3,7],"data_offsets":[256,277]}}`, 277))
	f.Fuzz(func(t *testing.T, quantisation, file []byte) {
		if object["quantization_config"] = json.RawMessage(quantisation); !json.Valid(quantisation) {
			return
		}
		config, err := json.Marshal(object)
		if err != nil {
			return
		}
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, configFile), config)
		writeFile(t, filepath.Join(dir, safetensorsFile), file)
		s, err := Open(dir)
		if err != nil {
			return
		}
		defer s.Close()
		for _, name := range s.Names() {
			shape, _, _ := s.Info(name)
			if n, ok := numel(shape); !ok || n > 1<<20 {
				continue
			}
			if err := s.tensors[name].eachChunk(make([]float32, 100), func(int64, []float32) error { return nil }); err != nil {
				t.Fatalf("%s %v: %v", name, shape, err)
			}
		}
	})
}
