package kernels

import (
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels/emulated"
	"github.com/mgrpo/mgrpo/cuda"
)

// linked has the GPU of a build with the tag cuda, on a machine that has one.
var linked []Backend

// onEveryBackend runs a test on the CPU, on a GPU if the build and the machine have one, and on the emulated one unless the tests require a GPU.
func onEveryBackend(t *testing.T, test func(t *testing.T, b Backend)) {
	t.Helper()
	backends := append([]Backend{CPU}, linked...)
	if !cuda.Required() {
		backends = append(backends, OfTable("emulated", emulated.Table(t)))
	}
	for _, b := range backends {
		t.Run(b.String(), func(t *testing.T) { test(t, b) })
	}
}

// arrays are a test's slices in a backend's memory.
func arrays(t *testing.T, b Backend) *Memory {
	t.Helper()
	m := NewMemory(b)
	t.Cleanup(func() {
		if err := m.Err(); err != nil {
			t.Errorf("an array: %v", err)
		}
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// download brings arrays back that kernels wrote.
func download(t *testing.T, arrays ...interface{ Download() error }) {
	t.Helper()
	for _, a := range arrays {
		if err := a.Download(); err != nil {
			t.Fatal(err)
		}
	}
}
