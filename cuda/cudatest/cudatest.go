// Package cudatest tells tests where they can run.
package cudatest

import (
	"testing"

	"github.com/mgrpo/mgrpo/cuda"
)

// Devices are "cpu" and, where there is a GPU that this build can use, "cuda:0": what tests of models, learners and
// engines run over. The emulated GPU of bindings/kernels/emulated is not among them: a model's tensors are LibTorch's, and
// LibTorch has no such device. Tests of the kernels themselves run on it, those of advantages and optimizer included.
func Devices(t *testing.T) []string {
	t.Helper()
	gpus, err := cuda.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(gpus) == 0 {
		return []string{"cpu"}
	}
	return []string{"cpu", "cuda:0"}
}

// Each runs a test on every one of Devices.
func Each(t *testing.T, test func(t *testing.T, device string)) {
	for _, device := range Devices(t) {
		t.Run(device, func(t *testing.T) { test(t, device) })
	}
}
