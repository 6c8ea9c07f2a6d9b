// Package cudatest selects the devices on which a test runs.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package cudatest

import (
	"os"
	"testing"

	"github.com/mgrpo/mgrpo/cuda"
)

// Devices returns "cpu" and, if this build can use a GPU, "cuda:0". Tests of models, learners
// and engines run on each of them. `make test-emulated` runs them on an emulated GPU, including
// LibTorch's device. If MGRPO_REQUIRE_GPU is set and there is no GPU, the test fails.
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

// Emulated reports whether the GPU is emulated.
func Emulated() bool { return os.Getenv("MGRPO_EMULATED_ULPS") != "" }

// Real reports whether the device is a GPU that is not emulated. Its libraries choose the kernel of a
// product by size and alignment of the factors, so two ways to compute the same sum differ by rounding.
func Real(device string) bool { return device != "cpu" && !Emulated() }

// SkipSlow skips a test that takes minutes on an emulated GPU. It still runs on the CPU and on a real GPU.
func SkipSlow(t *testing.T, device string) {
	t.Helper()
	if device != "cpu" && Emulated() {
		t.Skip("takes minutes on an emulated GPU")
	}
}

// Each runs a test on each of Devices.
func Each(t *testing.T, test func(t *testing.T, device string)) {
	for _, device := range Devices(t) {
		t.Run(device, func(t *testing.T) { test(t, device) })
	}
}
