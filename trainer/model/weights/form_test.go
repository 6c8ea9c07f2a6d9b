package weights

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// wrap writes a tiny model as the language model within another model, together with other parts;
// rename gives the names of its tensors. It returns the weights by the names that Source uses.
func wrap(t *testing.T, cfg arch.Config, outer string, keys map[string]any, rename func(string) string, beside []stored) (dir string, want map[string][]float32) {
	t.Helper()
	dir, values := restore(t, cfg, func(all []stored) []stored { return append(prefixed(rename)(all), beside...) })
	text := readObject(t, filepath.Join(dir, configFile))
	for key := range keys {
		delete(text, key)
	}
	whole := map[string]any{"model_type": outer, "architectures": []string{"XForConditionalGeneration"}, "text_config": text, "vision_config": map[string]any{"depth": 3}, "torch_dtype": "float32"}
	maps.Copy(whole, keys)
	data, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, configFile), data)
	want = map[string][]float32{}
	for name, v := range values {
		if rest, inside := strings.CutPrefix(name, "model."); inside {
			name = "model.language_model." + rest
		}
		want[name] = v
	}
	return dir, want
}

func readObject(t *testing.T, file string) (object map[string]any) {
	t.Helper()
	golden.ReadJSON(t, file, &object)
	return object
}

// visionParts are tensors outside the language model. Some have types that weights do not have,
// and one has a name that ends like a layer's.
var visionParts = []stored{
	{"vision_tower.layers.0.input_layernorm.weight", "F32", []int64{8}, make([]byte, 32)},
	{"vision_tower.position_ids", "I64", []int64{2}, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
	{"multi_modal_projector.weight", "F16", []int64{1, 2}, []byte{1, 2, 3, 4}},
	{"mtp.layers.0.input_layernorm.weight", "BF16", []int64{8}, make([]byte, 16)},
}

// TestWrappedSaved: a saved folder has the configuration, the names and the other parts of the loaded folder, and trained weights.
func TestWrappedSaved(t *testing.T) {
	for _, c := range []struct {
		outer, family string
		rename        func(string) string
	}{
		{"gemma3", arch.Gemma3, func(name string) string { return "language_model." + name }},
		{"mistral3", "mistral", func(name string) string { return "language_model." + name }},
		{"mistral3", "mistral", inside("model.language_model.")},
		{"qwen2_5_vl", arch.Qwen2, inside("model.")},
	} {
		cfg := tinyConfig(c.family)
		if c.family == arch.Gemma3 {
			cfg.Tied = true
		}
		dir, want := wrap(t, cfg, c.outer, map[string]any{"tie_word_embeddings": cfg.Tied}, c.rename, visionParts)
		expectSame(t, dir, want, "mtp (1 tensors), multi_modal_projector (1 tensors), vision_tower (2 tensors)")
		s := openChecked(t, dir)
		saved := filepath.Join(t.TempDir(), "saved")
		trained := func(name string, dst []float32) error {
			for i, v := range want[name] {
				dst[i] = v + 1
			}
			return nil
		}
		h := HF{Config: s.Config(), Read: trained, Form: s.Form()}
		if err := s.Close(); err != nil { // the form is still valid afterwards
			t.Fatal(err)
		}
		if err := h.WriteFolder(saved, F32, nil); err != nil {
			t.Fatal(err)
		}
		compareFolders(t, dir, saved)
		moved := map[string][]float32{}
		for name, values := range want {
			moved[name] = slices.Clone(values)
			for i := range values {
				moved[name][i]++
			}
		}
		expectSame(t, saved, moved)
	}
}

// compareFolders compares configurations byte by byte, the names of tensors, and the bytes of visionParts.
func compareFolders(t *testing.T, a, b string) {
	t.Helper()
	configs := make([][]byte, 2)
	for i, dir := range []string{a, b} {
		var err error
		if configs[i], err = os.ReadFile(filepath.Join(dir, configFile)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(configs[0], configs[1]) {
		t.Errorf("config.json was\n%s\nand is\n%s", configs[0], configs[1])
	}
	before, errA := OpenTensors(filepath.Join(a, safetensorsFile))
	after, errB := OpenTensors(filepath.Join(b, safetensorsFile))
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	defer before.Close()
	defer after.Close()
	if !slices.Equal(before.Names(), after.Names()) {
		t.Errorf("names were %q and are %q", before.Names(), after.Names())
	}
	for _, part := range visionParts {
		if got := after.tensors[part.name]; string(got.dtype) != part.dtype || !slices.Equal(got.shape, part.shape) || !bytes.Equal(got.data, part.data) {
			t.Errorf("%s is %s %v %v", part.name, got.dtype, got.shape, got.data)
		}
	}
}

// TestWrappedAlone: the language model of a wrapped one, saved without the other parts, has the names and keys of its family.
func TestWrappedAlone(t *testing.T) {
	cfg := tinyConfig("mistral")
	dir, want := wrap(t, cfg, "mistral3", map[string]any{"tie_word_embeddings": false}, func(name string) string { return "language_model." + name }, visionParts)
	s := openChecked(t, dir)
	if err := s.Alone(); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(t.TempDir(), "saved")
	read := func(name string, dst []float32) error { return s.Read(name, 0, rowsOf(t, s, name), dst) }
	if err := (HF{Config: s.Config(), Read: read, Form: s.Form()}).WriteFolder(saved, BF16, nil); err != nil {
		t.Fatal(err)
	}
	if object := readObject(t, filepath.Join(saved, configFile)); object["model_type"] != "mistral" || object["text_config"] != nil || object["torch_dtype"] != "bfloat16" {
		t.Errorf("config.json is %v", object)
	}
	alone := openChecked(t, saved)
	if len(alone.Names()) != len(want) || !slices.Contains(alone.Names(), "model.layers.1.mlp.up_proj.weight") {
		t.Errorf("names %q", alone.Names())
	}
}

func rowsOf(t *testing.T, s *Source, name string) int64 {
	t.Helper()
	shape, _, ok := s.Info(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	count, _ := rows(shape)
	return count
}

// TestWrappedHeads: a head stored in addition to a tied embedding is written again. If it
// differs from the embedding, the model is not tied.
func TestWrappedHeads(t *testing.T) {
	cfg := tinyConfig("mistral")
	for _, same := range []bool{true, false} {
		head := stored{"language_model.lm_head.weight", "F32", []int64{11, 8}, nil}
		dir, want := wrap(t, cfg, "mistral3", map[string]any{"tie_word_embeddings": true}, func(name string) string { return "language_model." + name }, nil)
		var all []stored
		for name, values := range want {
			name = strings.Replace(name, "model.language_model.", "language_model.model.", 1)
			one := stored{name, "F32", nil, encodeAs(nil, F32, values)}
			for _, spec := range cfg.Layout().Tensors() {
				if "language_model."+spec.Name == name {
					one.shape = spec.Shape
				}
			}
			if name == headName {
				continue
			}
			all = append(all, one)
			if strings.HasSuffix(name, "embed_tokens.weight") {
				head.data = slices.Clone(one.data)
			}
		}
		if !same {
			head.data[0]++
		}
		writeStored(t, filepath.Join(dir, safetensorsFile), append(all, head))
		s := openChecked(t, dir)
		if s.Config().Tied != same {
			t.Errorf("tied: %v, want %v", s.Config().Tied, same)
		}
		saved := filepath.Join(t.TempDir(), "saved")
		read := func(name string, dst []float32) error { return s.Read(name, 0, rowsOf(t, s, name), dst) }
		if err := (HF{Config: s.Config(), Read: read, Form: s.Form()}).WriteFolder(saved, F32, nil); err != nil {
			t.Fatal(err)
		}
		if again := openChecked(t, saved); again.Config().Tied != same {
			t.Errorf("saved tied: %v, want %v", again.Config().Tied, same)
		}
	}
}

// TestWrappedRefused: the error names the fault of a wrapped model.
func TestWrappedRefused(t *testing.T) {
	for _, c := range []struct {
		keys map[string]any
		want string
	}{
		{map[string]any{"architectures": []string{"GemmaForSequenceClassification"}}, "GemmaForSequenceClassification"},
		{map[string]any{"text_config": map[string]any{"model_type": "gemma3n_text"}}, "gemma3n_text"},
		{map[string]any{"text_config": 3}, "text_config"},
		{map[string]any{"model_type": "unheard", "text_config": map[string]any{"hidden_size": 8}}, "text_config.model_type is missing"},
	} {
		dir, _ := wrap(t, tinyConfig(arch.Gemma3), "gemma3", c.keys, func(name string) string { return "language_model." + name }, nil)
		_, err := openAndCheck(dir)
		golden.WantError(t, err, c.want)
	}
}
