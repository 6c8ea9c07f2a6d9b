package main

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/memorytest"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// TestLoadPeakMemory: while a model comes in, anonymous memory grows by little more than the weights as they are held. Safetensors are
// streamed. gotch's copy of a pytorch_model.bin is gone before they are allocated.
func TestLoadPeakMemory(t *testing.T) {
	ctx := t.Context()
	cfg := arch.Config{
		Family: arch.Llama, VocabSize: 40000, Hidden: 1024, Layers: 2, Heads: 16, KVHeads: 4, HeadDim: 64, FFN: 3072,
		RMSEps: 1e-5, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 64, Tied: true,
	}
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for name, write := range map[string]func(t *testing.T, dir string, cfg arch.Config){"safetensors": writeHF, "bin": writeBinFolder} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			write(t, dir, cfg)
			var m *model.Model
			grown := memorytest.Peak(t, func() {
				source, err := weights.Open(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer source.Close()
				m, err = model.Load(ctx, dev, source, model.Options{Compute: torch.Float32})
				if err != nil {
					t.Fatal(err)
				}
			})
			defer m.Close(ctx)
			size := 4 * m.Layout.Numel
			if float64(grown) > 1.2*float64(size) || float64(grown) < 0.9*float64(size) {
				t.Errorf("anonymous memory grew by %d MB for %d MB of weights", grown>>20, size>>20)
			}
		})
	}
}

// writeHF writes a folder with float32 safetensors.
func writeHF(t *testing.T, dir string, cfg arch.Config) {
	t.Helper()
	ones := func(_ string, dst []float32) error {
		for i := range dst {
			dst[i] = 1
		}
		return nil
	}
	if err := (weights.HF{Config: cfg, Read: ones}).WriteFolder(dir, weights.F32, nil); err != nil {
		t.Fatal(err)
	}
}

// writeBinFolder writes config.json and a float32 pytorch_model.bin of ones, in the format of torch.save.
func writeBinFolder(t *testing.T, dir string, cfg arch.Config) {
	t.Helper()
	config, err := cfg.JSON("float32")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "pytorch_model.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	archive := zip.NewWriter(f)
	put := func(name string, data []byte) {
		w, err := archive.CreateHeader(&zip.FileHeader{Name: "pytorch_model/" + name, Method: zip.Store})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tensors := cfg.Layout().Tensors()
	put("data.pkl", pickleStateDict(tensors))
	one := binary.LittleEndian.AppendUint32(nil, 0x3f800000)
	for i, v := range tensors {
		put(fmt.Sprintf("data/%d", i), bytes.Repeat(one, int(v.Numel())))
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
}

// pickleStateDict returns an OrderedDict of contiguous tensors as a pickle of protocol 2. Each tensor has its own storage.
func pickleStateDict(tensors []arch.Tensor) []byte {
	p := []byte("\x80\x02ccollections\nOrderedDict\n)R(")
	text := func(s string) {
		p = binary.LittleEndian.AppendUint32(append(p, 'X'), uint32(len(s)))
		p = append(p, s...)
	}
	number := func(n int64) { p = binary.LittleEndian.AppendUint32(append(p, 'J'), uint32(n)) }
	for i, v := range tensors {
		text(v.Name)
		p = append(p, "ctorch._utils\n_rebuild_tensor_v2\n(("...)
		text("storage")
		p = append(p, "ctorch\nFloatStorage\n"...)
		text(strconv.Itoa(i))
		text("cpu")
		number(v.Numel())
		p = append(p, "tQ"...) // the persistent id
		number(0)              // offset
		p = append(p, '(')
		for _, n := range v.Shape {
			number(n)
		}
		p = append(p, "t("...)
		for d := range v.Shape {
			stride := int64(1)
			for _, n := range v.Shape[d+1:] {
				stride *= n
			}
			number(stride)
		}
		p = append(p, "t\x89ccollections\nOrderedDict\n)RtR"...) // requires_grad, hooks
	}
	return append(p, "u."...)
}
