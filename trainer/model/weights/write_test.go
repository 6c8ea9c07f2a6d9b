package weights

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// TestGoldenRoundTrip writes every golden model and reads the same values back. `make interop`
// checks with transformers the models that this test writes into $MGRPO_SAVED.
func TestGoldenRoundTrip(t *testing.T) {
	paths := golden.Models(t, arch.Families())
	for _, path := range paths {
		s := openChecked(t, golden.Checkpoint(path))
		dtype, wide := s.DType(), s.Wide()
		if s.Config().Quantisation != nil { // products with scales need float32
			dtype, wide = F32, nil
		}
		dir := filepath.Join(t.TempDir(), "copy")
		read := func(name string, dst []float32) error {
			shape, _, _ := s.Info(name)
			count, _ := rows(shape)
			return s.Read(name, 0, count, dst)
		}
		extra := map[string][]byte{"tokenizer.json": []byte("{}"), "generation_config.json": []byte(`{"eos_token_id":[2,3]}`)}
		copied := HF{Config: s.Config(), Read: read, Wide: wide}
		if err := copied.WriteFolder(dir, dtype, extra); err != nil {
			t.Fatal(err)
		}
		if saved := os.Getenv("MGRPO_SAVED"); saved != "" {
			if err := copied.WriteFolder(filepath.Join(saved, filepath.Base(filepath.Dir(path))+"-"+filepath.Base(path)), dtype, nil); err != nil {
				t.Fatal(err)
			}
		}
		again := openChecked(t, dir)
		if !slices.Equal(s.Names(), again.Names()) {
			t.Errorf("%s: names differ", path)
		}
		for _, name := range s.Names() {
			a, asStored := s.Bytes(name)
			b, _ := again.Bytes(name)
			if !asStored || s.Config().Quantisation != nil {
				a, b = encodeAs(nil, F32, readAll(t, s, name)), encodeAs(nil, F32, readAll(t, again, name))
			}
			if !slices.Equal(a, b) {
				t.Errorf("%s: %s differs", path, name)
			}
		}
		want, got := s.Config(), again.Config()
		want.Raw, got.Raw, want.Tokens.EOS, want.Quantisation = nil, nil, []int32{2, 3}, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: config %+v, want %+v", path, got, want)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json")); err != nil || string(data) != "{}" {
			t.Errorf("tokenizer.json: %q %v", data, err)
		}
	}
}

func TestShards(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	weights, read := randomWeights(cfg, 7)
	dir := filepath.Join(t.TempDir(), "model")
	files, err := durable.NewFolder(durable.OS{}, dir, func(f *durable.Folder) error {
		return HF{Config: cfg, Read: read}.write(f, F32, nil, 1000)
	})
	if err != nil {
		t.Fatal(err)
	}
	shards := 0
	for _, f := range files {
		if filepath.Ext(f.Path) == ".safetensors" {
			shards++
		}
	}
	if shards < 3 {
		t.Errorf("%d shards", shards)
	}
	s := openChecked(t, dir)
	for name, want := range weights {
		if !slices.Equal(readAll(t, s, name), want) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestWriteRefused(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	_, read := randomWeights(cfg, 7)
	parent := t.TempDir()
	dir := filepath.Join(parent, "model")
	golden.WantError(t, HF{Config: cfg, Read: read}.WriteFolder(dir, Q4_1, nil), "Q4_1")
	golden.WantError(t, HF{Config: cfg, Read: func(string, []float32) error { return errors.New("lost") }}.WriteFolder(dir, F32, nil), "lost")
	for _, name := range []string{"../../x", "a/b", "", ".hidden", configFile, safetensorsFile} {
		golden.WantError(t, HF{Config: cfg, Read: read}.WriteFolder(dir, F32, map[string][]byte{name: nil}), name)
	}
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := (HF{Config: cfg, Read: read}).WriteFolder(dir, F32, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("overwrote: %v", err)
	}
}

// A folder's type is the type of its tensors; some may be in float32, and a copy keeps these in
// float32. A value too large for the type is an error and is not written as infinite.
func TestTypeOfAFolder(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	for _, dtype := range []DType{F32, BF16, F16} {
		dir, _ := writeTiny(t, cfg, dtype)
		if got := openChecked(t, dir).DType(); got != dtype {
			t.Errorf("%s is read as %s", dtype, got)
		}
	}
	weights, read := randomWeights(cfg, 7)
	dir := filepath.Join(t.TempDir(), "mixed")
	wide := map[string]bool{"model.norm.weight": true, "model.layers.0.input_layernorm.weight": true}
	if err := (HF{Config: cfg, Read: read, Wide: wide}).WriteFolder(dir, BF16, nil); err != nil {
		t.Fatal(err)
	}
	mixed := openChecked(t, dir)
	if mixed.DType() != BF16 || !maps.Equal(mixed.Wide(), wide) {
		t.Errorf("read as %s, float32 in %v", mixed.DType(), mixed.Wide())
	}
	for name := range wide {
		if !slices.Equal(readAll(t, mixed, name), weights[name]) {
			t.Errorf("%s was rounded", name)
		}
	}
	for value, fits := range map[float32]bool{65519: true, -65519: true, 65520: false, -65520: false} {
		if err := WriteFloats(io.Discard, F16, []float32{1, value}); (err == nil) != fits {
			t.Errorf("%v: %v", value, err)
		}
		if err := WriteFloats(io.Discard, BF16, []float32{1, value}); err != nil {
			t.Error(err)
		}
	}
}
