package model

import (
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
)

// TestRandomOnDevice: weights that are generated on a device have the same deviations as the weights of Random, are
// reproducible, and are equal in fp32 and bf16. Norms are 1. Options that do not keep all weights on the device are refused.
func TestRandomOnDevice(t *testing.T) {
	cudatest.Each(t, func(t *testing.T, device string) {
		dev, err := torch.Open(device, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		read := func(fresh func(opt Options) (*Model, error), opt Options) []float32 {
			m, err := fresh(opt)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close(t.Context())
			values := make([]float32, m.Layout.Numel)
			from := m.Master
			if from == nil {
				from = BufferOver(m.Half)
			}
			if err := from.Read(t.Context(), 0, values); err != nil {
				t.Fatal(err)
			}
			return values
		}
		onDevice := func(opt Options) (*Model, error) { return RandomOnDevice(t.Context(), dev, sixLayers, 3, opt) }
		random := func(opt Options) (*Model, error) { return Random(t.Context(), dev, sixLayers, 3, opt) }
		got, want := read(onDevice, Options{Compute: torch.Float32}), read(random, Options{Compute: torch.Float32})
		for _, l := range sixLayers.Layout().Leaves {
			for _, part := range l.Parts {
				a, b := spread(got[part.Offset:][:part.Numel()]), spread(want[part.Offset:][:part.Numel()])
				if math.Abs(a-b) > 0.2*b {
					t.Errorf("%s: deviation %v, but Random's is %v", part.Name, a, b)
				}
			}
		}
		for _, opt := range []Options{{Compute: torch.Float32}, {Compute: torch.BFloat16}, {Compute: torch.BFloat16, Frozen: true}} {
			if !slices.Equal(read(onDevice, opt), got) {
				t.Errorf("%+v: other weights", opt)
			}
		}
		for _, opt := range []Options{{Compute: torch.BFloat16, HostMaster: true}, {Compute: torch.BFloat16, Size: 2}, {Gathered: true}} {
			if _, err := onDevice(opt); err == nil {
				t.Errorf("%+v: not refused", opt)
			}
		}
	})
}

// spread returns the root of the mean square.
func spread(values []float32) float64 {
	sum := 0.0
	for _, v := range values {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum / float64(len(values)))
}
