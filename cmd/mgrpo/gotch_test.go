package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// gotch and our reader of the mapped file see the same tensors.
func TestLoadBin(t *testing.T) {
	dir := filepath.Dir(golden.File(t, "models", filepath.Join("qwen2-tiny-bin", "pytorch_model.bin")))
	throughGotch := read(t, dir)
	weights.SetBinLoader(nil)
	defer weights.SetBinLoader(loadBin)
	mapped := read(t, dir)
	if len(mapped) == 0 || len(throughGotch) != len(mapped) {
		t.Fatalf("gotch read %d tensors, the mapped file has %d", len(throughGotch), len(mapped))
	}
	for name, want := range mapped {
		if !bytes.Equal(throughGotch[name], want) {
			t.Errorf("%s differs", name)
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
