// Package cudatest tells tests where they can run.
package cudatest

import (
	"os"
	"testing"

	"github.com/mgrpo/mgrpo/cuda"
)

// Devices are "cpu" and, where there is a GPU that this build can use, "cuda:0": what tests of models, learners and
// engines run over. `make test-emulated` runs them where the GPU is an emulated one, LibTorch's device included. Without a
// GPU a test fails where MGRPO_REQUIRE_GPU is 1.
func Devices(t *testing.T) []string {
	t.Helper()
	gpus, err := cuda.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(gpus) == 0 {
		if cuda.Required() {
			t.Fatal("no GPU, and MGRPO_REQUIRE_GPU is set")
		}
		return []string{"cpu"}
	}
	return []string{"cpu", "cuda:0"}
}

// Emulated is whether the GPU is an emulated one.
func Emulated() bool { return os.Getenv("MGRPO_EMULATED_ULPS") != "" }

// Real reports whether the device is a GPU that is not emulated. Its libraries choose the kernel of a product by its size and the
// alignment of its factors, so that two ways to the same sum differ by rounding.
func Real(device string) bool { return device != "cpu" && !Emulated() }

// SkipSlow skips what takes minutes over an emulated GPU. The CPU and a real GPU have it.
func SkipSlow(t *testing.T, device string) {
	t.Helper()
	if device != "cpu" && Emulated() {
		t.Skip("takes minutes on an emulated GPU")
	}
}

// Each runs a test on every one of Devices.
func Each(t *testing.T, test func(t *testing.T, device string)) {
	for _, device := range Devices(t) {
		t.Run(device, func(t *testing.T) { test(t, device) })
	}
}
