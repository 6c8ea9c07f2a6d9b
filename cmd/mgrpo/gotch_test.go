package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// What torch.save wrote has the tensors of the safetensors file of the same weights, in float32 and in bfloat16.
func TestLoadBin(t *testing.T) {
	for bin, safetensors := range map[string]string{"qwen2-tiny-bin": "qwen2-tiny", "qwen3-bf16-bin": "qwen3-untied-bf16"} {
		got := read(t, filepath.Dir(golden.File(t, "models", filepath.Join(bin, "pytorch_model.bin"))))
		want := read(t, filepath.Dir(golden.File(t, "models", filepath.Join(safetensors, "model.safetensors"))))
		if len(want) == 0 {
			t.Fatalf("%s: no tensors", safetensors)
		}
		for name := range want {
			if !bytes.Equal(got[name], want[name]) {
				t.Errorf("%s: %s differs", bin, name)
			}
		}
	}
}

// read returns the bytes of every tensor of a checkpoint.
func read(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	source, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if err := source.Check(); err != nil { // every tensor of the architecture is there, and no others
		t.Fatal(err)
	}
	tensors := map[string][]byte{}
	for _, name := range source.Names() {
		data, ok := source.Bytes(name)
		if !ok {
			t.Fatalf("no bytes of %s", name)
		}
		tensors[name] = bytes.Clone(data)
	}
	return tensors
}
