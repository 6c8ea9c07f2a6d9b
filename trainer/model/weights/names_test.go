package weights

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// stored is a tensor in a file that a test writes.
type stored struct {
	name  string
	dtype string
	shape []int64
	data  []byte
}

// writeStored replaces a folder's model.safetensors.
func writeStored(t *testing.T, file string, all []stored) {
	t.Helper()
	var out []OutTensor
	for _, s := range all {
		out = append(out, OutTensor{s.name, s.dtype, s.shape, int64(len(s.data)), func(w io.Writer) error { _, err := w.Write(s.data); return err }})
	}
	var b bytes.Buffer
	if err := WriteSafetensors(&b, out); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// restore writes a tiny model, and then replaces its tensors by the result of change.
func restore(t *testing.T, cfg arch.Config, change func([]stored) []stored) (dir string, values map[string][]float32) {
	t.Helper()
	dir, values = writeTiny(t, cfg, F32)
	var all []stored
	for _, spec := range cfg.Layout().Tensors() {
		all = append(all, stored{spec.Name, "F32", spec.Shape, encodeAs(nil, F32, values[spec.Name])})
	}
	writeStored(t, filepath.Join(dir, safetensorsFile), change(all))
	return dir, values
}

// expectSame compares every tensor of a checkpoint, and looks for words in its notes.
func expectSame(t *testing.T, dir string, want map[string][]float32, notes ...string) {
	t.Helper()
	s := openChecked(t, dir)
	for name, values := range want {
		if got := readAll(t, s, name); !slices.Equal(got, values) {
			t.Errorf("%s differs", name)
		}
	}
	if len(s.Names()) != len(want) {
		t.Errorf("%d tensors, want %d", len(s.Names()), len(want))
	}
	all := strings.Join(s.Notes(), "\n")
	for _, note := range notes {
		if !strings.Contains(all, note) {
			t.Errorf("the notes %q do not contain %q", all, note)
		}
	}
}

// prefixed renames tensors.
func prefixed(rename func(name string) string) func([]stored) []stored {
	return func(all []stored) []stored {
		for i := range all {
			all[i].name = rename(all[i].name)
		}
		return all
	}
}

// inside returns a function that replaces the prefix "model." of names.
func inside(prefix string) func(string) string {
	return func(name string) string {
		if rest, ok := strings.CutPrefix(name, "model."); ok {
			return prefix + rest
		}
		return name
	}
}

// TestWrappedNames reads names as PyTorch's wrappers save them, and as models save them that contain a language model.
func TestWrappedNames(t *testing.T) {
	before := func(prefix string) func(string) string { return func(name string) string { return prefix + name } }
	for prefix, rename := range map[string]func(string) string{
		"module.model.":           before("module."),
		"_orig_mod.model.":        before("_orig_mod."),
		"module._orig_mod.model.": before("module._orig_mod."),
		"_fsdp_wrapped_module.model.": func(name string) string {
			return "_fsdp_wrapped_module." + strings.NewReplacer("layers.0.", "layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.",
				"layers.1.mlp.", "layers.1.mlp._orig_mod.").Replace(name)
		},
		"language_model.model.": before("language_model."),
		"model.language_model.": inside("model.language_model."),
		"transformer.":          inside("transformer."),
		"":                      inside(""),
	} {
		for _, family := range []string{arch.Llama, arch.Phi3, arch.OLMo2, arch.Qwen3MoE} {
			dir, values := restore(t, tinyConfig(family), prefixed(rename))
			expectSame(t, dir, values, `names begin with "`+prefix+`"`)
		}
	}
}

// TestErrorNamesMissingTensors: an error names missing tensors, tensors of the file, and the prefix.
func TestErrorNamesMissingTensors(t *testing.T) {
	dir, _ := restore(t, tinyConfig(arch.Llama), prefixed(func(name string) string {
		return strings.NewReplacer("model.norm", "model.final_norm", "model.", "module.model.").Replace(name)
	}))
	_, err := openAndCheck(dir)
	golden.WantError(t, err, "tensor model.norm.weight is missing", "unexpected tensor model.final_norm.weight", `"module.model."`)
	dir, _ = restore(t, tinyConfig(arch.Llama), prefixed(func(name string) string { return strings.Replace(name, "layers.", "h.", 1) }))
	_, err = openAndCheck(dir)
	golden.WantError(t, err, "model.layers.0.input_layernorm.weight is missing", "more", "unexpected tensor model.h.0.")
}

// TestTiedHeadAlone reads a tied embedding from lm_head.weight if the file does not have the embedding's own name.
func TestTiedHeadAlone(t *testing.T) {
	cfg := tinyConfig(arch.Llama)
	cfg.Tied = true
	dir, values := restore(t, cfg, prefixed(func(name string) string { return strings.Replace(name, "model.embed_tokens.weight", headName, 1) }))
	expectSame(t, dir, values, headName)
	cfg.Tied = false
	dir, _ = restore(t, cfg, func(all []stored) []stored {
		return slices.DeleteFunc(all, func(s stored) bool { return s.name == headName })
	})
	_, err := openAndCheck(dir)
	golden.WantError(t, err, "tensor lm_head.weight is missing")
}

// TestExtraState: tensors that are not weights are ignored, also if their type is unknown.
func TestExtraState(t *testing.T) {
	dir, values := restore(t, tinyConfig(arch.Qwen3), func(all []stored) []stored {
		return append(all, stored{"_extra_state", "U8", []int64{0}, nil}, stored{"model.layers.0.self_attn._extra_state", "U8", []int64{0}, nil}, stored{"model.layers.1.mlp._extra_state", "I64", []int64{1}, make([]byte, 8)})
	})
	expectSame(t, dir, values, "_extra_state is not a weight", "self_attn._extra_state", "mlp._extra_state")
}

// TestFusedExperts reads a golden's model as transformers 5 saves it with save_original_format=False.
func TestFusedExperts(t *testing.T) {
	want := map[string][]float32{}
	alone := openChecked(t, filepath.Join("..", "..", "..", "testdata", "families", "qwen3moe-top2"))
	for _, name := range alone.Names() {
		want[name] = readAll(t, alone, name)
	}
	expectSame(t, filepath.Join("testdata", "qwen3moe-fused"), want)
	cfg := tinyConfig(arch.Qwen3MoE)
	dir, _ := restore(t, cfg, func(all []stored) []stored {
		all = slices.DeleteFunc(all, func(s stored) bool {
			return strings.Contains(s.name, "experts") && strings.Contains(s.name, "layers.1.")
		})
		return append(all, stored{"model.layers.1.mlp.experts.gate_up_proj", "F32", []int64{3, 8, 10}, make([]byte, 4*3*8*10)})
	})
	_, err := openAndCheck(dir)
	golden.WantError(t, err, "fused experts", "[3 8 10]", "[3 10 8]")
	dir, _ = restore(t, cfg, func(all []stored) []stored {
		return append(all, stored{"model.layers.1.mlp.experts.down_proj", "F32", []int64{3, 8, 5}, make([]byte, 4*3*8*5)})
	})
	_, err = openAndCheck(dir)
	golden.WantError(t, err, "model.layers.1.mlp.experts.down_proj", "occurs twice")
	dir, _ = restore(t, cfg, func(all []stored) []stored {
		return slices.DeleteFunc(all, func(s stored) bool { return strings.HasPrefix(s.name, "model.layers.1.mlp.experts.2.up") })
	})
	_, err = openAndCheck(dir)
	golden.WantError(t, err, "model.layers.1.mlp.experts.2.up_proj.weight is missing", "fused experts model.layers.1.mlp.experts.gate_up_proj")
}

// TestFusedExpertsOfLFM2 reads separate experts, as they are published, and fused ones, with
// the names that transformers' conversion of lfm2_moe uses.
func TestFusedExpertsOfLFM2(t *testing.T) {
	cfg := tinyConfig(arch.LFM2MoE)
	experts := func(s stored) bool { return strings.Contains(s.name, ".experts.") }
	dir, values := restore(t, cfg, func(all []stored) []stored {
		if i := slices.IndexFunc(all, experts); i < 0 || all[i].name != "model.layers.0.feed_forward.experts.0.w1.weight" {
			t.Error("the first expert does not have the expected name")
		}
		return all
	})
	expectSame(t, dir, values)
	dir, values = restore(t, cfg, func(all []stored) []stored {
		data := map[string][]byte{}
		for _, s := range all {
			data[s.name] = s.data
		}
		all = slices.DeleteFunc(all, experts)
		for layer := range cfg.Layers {
			in := fmt.Sprintf("model.layers.%d.feed_forward.experts.", layer)
			var gateUp, down []byte
			for e := range cfg.Mixture.Experts {
				of := func(name string) []byte { return data[fmt.Sprintf("%s%d.%s.weight", in, e, name)] }
				gateUp = append(append(gateUp, of("w1")...), of("w3")...)
				down = append(down, of("w2")...)
			}
			all = append(all, stored{in + "gate_up_proj", "F32", []int64{3, 10, 8}, gateUp}, stored{in + "down_proj", "F32", []int64{3, 8, 5}, down})
		}
		return all
	})
	expectSame(t, dir, values)
}

// TestRouterOfMixtral reads the name that transformers 5 gives a router with save_original_format=False.
func TestRouterOfMixtral(t *testing.T) {
	other := func(name string) string { return strings.Replace(name, "block_sparse_moe.gate.", "mlp.gate.", 1) }
	dir, values := restore(t, tinyConfig(arch.Mixtral), prefixed(other))
	expectSame(t, dir, values)
	dir, values = restore(t, tinyConfig(arch.Mixtral), prefixed(func(name string) string { return "module." + other(name) }))
	expectSame(t, dir, values)
	dir, _ = restore(t, tinyConfig(arch.Mixtral), func(all []stored) []stored {
		i := slices.IndexFunc(all, func(s stored) bool { return other(s.name) != s.name })
		return append(all, stored{other(all[i].name), "F32", all[i].shape, all[i].data})
	})
	_, err := openAndCheck(dir)
	golden.WantError(t, err, "unexpected tensor model.layers.0.mlp.gate.weight")
}

// TestAlwaysFused reads fused experts of gpt-oss, which have transposed matrices and alternate
// rows of gate and up, and refuses other shapes.
func TestAlwaysFused(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "testdata", "families", "gpt_oss-sinks")
	s := openChecked(t, dir)
	file, err := OpenTensors(filepath.Join(dir, safetensorsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const experts, hidden, ffn = 5, 24, 16
	all := func(name string, n int) []float32 {
		values := make([]float32, n)
		if err := file.Read("model.layers.1.mlp.experts."+name, 0, experts, values); err != nil {
			t.Fatal(err)
		}
		return values
	}
	gateUp, gateUpBias := all("gate_up_proj", experts*hidden*2*ffn), all("gate_up_proj_bias", experts*2*ffn)
	down, downBias := all("down_proj", experts*ffn*hidden), all("down_proj_bias", experts*hidden)
	for e := range experts {
		of := func(name string) []float32 {
			return readAll(t, s, fmt.Sprintf("model.layers.1.mlp.experts.%d.%s", e, name))
		}
		for i := range ffn {
			for at, name := range []string{"gate_proj", "up_proj"} {
				if of(name + ".bias")[i] != gateUpBias[e*2*ffn+2*i+at] {
					t.Fatalf("bias %d of %s in expert %d", i, name, e)
				}
				for h := range hidden {
					if of(name + ".weight")[i*hidden+h] != gateUp[(e*hidden+h)*2*ffn+2*i+at] || of("down_proj.weight")[h*ffn+i] != down[(e*ffn+i)*hidden+h] {
						t.Fatalf("expert %d, unit %d, width %d", e, i, h)
					}
				}
			}
		}
		if !slices.Equal(of("down_proj.bias"), downBias[e*hidden:][:hidden]) {
			t.Errorf("biases of expert %d", e)
		}
	}
	some := make([]float32, 3*hidden)
	if err := s.Read("model.layers.1.mlp.experts.2.up_proj.weight", 4, 7, some); err != nil || some[hidden+1] != gateUp[(2*hidden+1)*2*ffn+11] {
		t.Errorf("rows 4 to 6: %v", err)
	}
	other, _ := restore(t, tinyConfig(arch.GPTOSS), func(all []stored) []stored {
		all = slices.DeleteFunc(all, func(s stored) bool { return s.name == "model.layers.1.mlp.experts.gate_up_proj" })
		return append(all, stored{"model.layers.1.mlp.experts.gate_up_proj", "F32", []int64{3, 12, 8}, make([]byte, 4*3*8*12)})
	})
	_, err = openAndCheck(other)
	golden.WantError(t, err, "fused experts", "[3 12 8]", "[3 8 12]")
}

// TestEmptyFiles: files without bytes are ignored unless a tensor is missing without them.
func TestEmptyFiles(t *testing.T) {
	dir, values := writeTiny(t, tinyConfig(arch.Llama), F32)
	if err := os.WriteFile(filepath.Join(dir, generationFile), []byte(" \n"), 0o644); err != nil {
		t.Fatal(err)
	}
	expectSame(t, dir, values, generationFile+" is empty")
	if err := os.Rename(filepath.Join(dir, safetensorsFile), filepath.Join(dir, "model-00001-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{safetensorsFile, "model-00002-of-00002.safetensors"} {
		writeFile(t, filepath.Join(dir, file), nil)
	}
	index := `{"weight_map":{"model.embed_tokens.weight":"model-00001-of-00002.safetensors","old.weight":"model-00002-of-00002.safetensors"}}`
	writeFile(t, filepath.Join(dir, safetensorsIndex), []byte(index))
	expectSame(t, dir, values, safetensorsFile+" is empty", "model-00002-of-00002.safetensors is empty", "old.weight, which is in no shard", "is read")
	if err := os.WriteFile(filepath.Join(dir, safetensorsIndex), []byte(strings.ReplaceAll(index, "-00001", "-00002")), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := openAndCheck(dir)
	golden.WantError(t, err, "model.embed_tokens.weight is missing from model-00002-of-00002.safetensors")
}
