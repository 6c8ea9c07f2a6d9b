package weights

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

// TestGoldenBrokenAdapters: each broken adapter is refused, and the message names its folder and the fault.
func TestGoldenBrokenAdapters(t *testing.T) {
	dir := filepath.Join(golden.Dir(t, "lora"), "bad")
	var table struct {
		Base  string
		Cases []golden.Broken
	}
	golden.ReadJSON(t, filepath.Join(dir, "cases.json"), &table)
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			folder := filepath.Join(dir, c.Name)
			base, _, err := readConfig(filepath.Join(dir, table.Base))
			if err != nil {
				t.Fatal(err)
			}
			_, err = ReadAdapter(folder, base)
			if c.Must == "load" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			golden.WantError(t, err, c.Name)
			c.WantNamed(t, fmt.Sprint(err))
			t.Log(err)
		})
	}
	golden.Count("lora/bad", len(table.Cases))
}

// adapterOfPEFT reads the adapter that PEFT saved with init_lora_weights "eva", eva_config and layers_pattern, and returns it and the
// configuration of its base model.
func adapterOfPEFT(t *testing.T) (base arch.Config, a *Adapter) {
	base, _, err := readConfig(filepath.Join("..", "..", "..", "testdata", "models", "llama-tiny"))
	if err == nil {
		a, err = ReadAdapter(filepath.Join("testdata", "adapter-bin"), base)
	}
	if err != nil {
		t.Fatal(err)
	}
	return base, a
}

// TestAdapterOfEarlierRelease reads the adapter of a larger model's language model by the names of releases of transformers before 4.52.
func TestAdapterOfEarlierRelease(t *testing.T) {
	base, want := adapterOfPEFT(t)
	base.Wrapper = "llava"
	got, err := ReadAdapter(filepath.Join("testdata", "adapter-bin"), base)
	if err != nil {
		t.Fatal(err)
	}
	if name := got.Layout.Modules()[0].Name; !strings.HasPrefix(name, "model.language_model.layers.") || !slices.Equal(got.Values, want.Values) {
		t.Errorf("the first module is %s", name)
	}
}

// TestAdapterVeLoRA reads an adapter with the tensors that PEFT adds with velora_config.
func TestAdapterVeLoRA(t *testing.T) {
	base, want := adapterOfPEFT(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "adapter-bin"))); err != nil {
		t.Fatal(err)
	}
	var all []stored
	for _, p := range want.Layout.Tensors() {
		all = append(all, stored{p.Name, "F32", p.Shape, encodeAs(nil, F32, want.Values[p.Offset:][:p.Numel()])})
	}
	module := want.Layout.Modules()[0].Name
	all = append(all, stored{lora.FilePrefix + module + ".lora_velora_embed", "F32", []int64{2}, make([]byte, 8)})
	if err := os.Remove(filepath.Join(dir, adapterFile)); err != nil {
		t.Fatal(err)
	}
	writeStored(t, filepath.Join(dir, adapterFile), all)
	got, err := ReadAdapter(dir, base)
	if err != nil || !slices.Equal(got.Values, want.Values) {
		t.Error(err)
	}
}

// TestAdapterBin reads an adapter from a file of torch.save with the same tensors as the safetensors file.
func TestAdapterBin(t *testing.T) {
	base, want := adapterOfPEFT(t)
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "adapter-bin"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, adapterFile)); err != nil {
		t.Fatal(err)
	}
	got, err := ReadAdapter(dir, base)
	if err != nil {
		t.Fatal(err)
	}
	if len(want.Values) != 2*(160+64+64+64) || !slices.Equal(got.Values, want.Values) {
		t.Errorf("%d values in .bin, %d in safetensors", len(got.Values), len(want.Values))
	}
	if err := os.Remove(filepath.Join(dir, adapterBin)); err != nil {
		t.Fatal(err)
	}
	_, err = ReadAdapter(dir, base)
	golden.WantError(t, err, adapterFile, adapterBin)
}
