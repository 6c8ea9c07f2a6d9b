package gotchx

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sugarme/gotch/pickle"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/golden"
)

// entry is a tensor of a safetensors header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

func readSafetensors(t *testing.T, path string) (map[string]entry, []byte) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(file)
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(file[8:8+size], &raw); err != nil {
		t.Fatal(err)
	}
	delete(raw, "__metadata__")
	entries := map[string]entry{}
	for name, value := range raw {
		var e entry
		if err := json.Unmarshal(value, &e); err != nil {
			t.Fatal(err)
		}
		entries[name] = e
	}
	return entries, file[8+size:]
}

// The same model as PyTorch and as safetensors file.
func TestLoadBinEqualsSafetensors(t *testing.T) {
	bin := golden.File(t, "models", filepath.Join("qwen2-tiny-bin", "pytorch_model.bin"))
	want, data := readSafetensors(t, golden.File(t, "models", filepath.Join("qwen2-tiny", "model.safetensors")))
	names := map[string]torch.DType{"F32": torch.Float32, "BF16": torch.BFloat16, "F16": torch.Float16}
	seen := map[string]bool{}
	err := LoadBin(bin, func(name string, shape []int64, dtype torch.DType, got []byte) error {
		if name == "lm_head.weight" { // tied: the safetensors file holds it once
			name = "model.embed_tokens.weight"
		}
		seen[name] = true
		e, known := want[name]
		switch {
		case !known:
			t.Errorf("%s is not in the safetensors file", name)
		case names[e.DType] != dtype || !slices.Equal(e.Shape, shape):
			t.Errorf("%s is %v %v, want %s %v", name, dtype, shape, e.DType, e.Shape)
		case !bytes.Equal(got, data[e.Offsets[0]:e.Offsets[1]]):
			t.Errorf("%s differs", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != len(want) || len(seen) == 0 {
		t.Errorf("%d tensors, want %d", len(seen), len(want))
	}
	golden.Count("models", 1)
}

func TestLoadBinErrors(t *testing.T) {
	visit := func(string, []int64, torch.DType, []byte) error { return nil }
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "text": "hello, this is no checkpoint", "truncated": "PK\x03\x04\x14", "pickle": "\x80\x02]."} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := LoadBin(path, visit); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := LoadBin(filepath.Join(dir, "absent"), visit); err == nil {
		t.Error("absent: no error")
	}
	mine := errors.New("enough")
	bin := golden.File(t, "models", filepath.Join("qwen2-tiny-bin", "pytorch_model.bin"))
	if err := LoadBin(bin, func(string, []int64, torch.DType, []byte) error { return mine }); err != mine {
		t.Errorf("got %v, want the error of visit", err)
	}
}

func TestElements(t *testing.T) {
	storage := &pickle.FloatStorage{Data: []float32{0, 1, 2, 3, 4, 5, 6}}
	for _, c := range []struct {
		offset       int64
		size, stride []int64
		want         []float32
	}{
		{1, []int64{2, 3}, []int64{3, 1}, []float32{1, 2, 3, 4, 5, 6}},
		{1, []int64{3, 2}, []int64{1, 3}, []float32{1, 4, 2, 5, 3, 6}}, // a transpose
		{6, []int64{}, []int64{}, []float32{6}},
		{2, []int64{2, 2}, []int64{0, 1}, []float32{2, 3, 2, 3}}, // an expanded row
		{0, []int64{1, 7, 1}, []int64{99, 1, 5}, []float32{0, 1, 2, 3, 4, 5, 6}},
		{7, []int64{0, 5}, []int64{5, 1}, nil},
	} {
		got, err := elements(&pickle.StorageTensor{Source: storage, StorageOffset: c.offset, Size: c.size, Stride: c.stride})
		if err != nil || !slices.Equal(float32s(got), c.want) {
			t.Errorf("%v %v at %d: got %v, %v", c.size, c.stride, c.offset, float32s(got), err)
		}
	}
	for _, c := range []struct {
		offset       int64
		size, stride []int64
	}{
		{2, []int64{2, 3}, []int64{3, 1}}, {-1, []int64{1}, []int64{1}}, {8, []int64{}, []int64{}}, {7, []int64{}, []int64{}},
		{0, []int64{2}, []int64{1 << 62}}, {0, []int64{-1}, []int64{1}}, {0, []int64{2}, []int64{-1}}, {0, []int64{2}, nil},
		{0, []int64{1 << 40, 1 << 40}, []int64{0, 0}},
	} {
		if _, err := elements(&pickle.StorageTensor{Source: storage, StorageOffset: c.offset, Size: c.size, Stride: c.stride}); err == nil {
			t.Errorf("%v %v at %d was accepted", c.size, c.stride, c.offset)
		}
	}
}

func float32s(data []byte) []float32 {
	v := make([]float32, len(data)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.NativeEndian.Uint32(data[4*i:]))
	}
	return v
}
