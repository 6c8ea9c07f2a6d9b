package kernels

import (
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels/emulated"
	"github.com/mgrpo/mgrpo/cuda"
)

// linked contains the GPU if the build has the tag cuda and the machine has one.
var linked []Backend

// onEveryBackend runs a test on the CPU, on a GPU if the build and the machine have one, and on
// the emulated one unless the tests require a GPU.
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

// arrays returns a Memory for a test's slices. It checks for errors and frees them after the test.
func arrays(t *testing.T, b Backend) *Memory {
	t.Helper()
	m := NewMemory(b)
	t.Cleanup(func() {
		if err := m.Err(); err != nil {
			t.Errorf("allocating an array: %v", err)
		}
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// download copies arrays that kernels wrote back to the host.
func download(t *testing.T, arrays ...interface{ Download() error }) {
	t.Helper()
	for _, a := range arrays {
		if err := a.Download(); err != nil {
			t.Fatal(err)
		}
	}
}
