package learner

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/kernels/emulated"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/mgrpo/oracle"
)

// raggedGroups have multiplicities, weights of balanced alignment, and a group of each kind without advantages.
var raggedGroups = []mgrpo.RewardGroup{
	{Rewards: []float64{1, 0, 0.25, 1}},
	{Rewards: []float64{0.1, 0.9, 0.5}, Weights: []float64{5, 1, 2}},
	{Rewards: []float64{0.3, 0.3}},
	{Rewards: []float64{0.75, 0.1, 0.2}, Weights: []float64{0.5, 0, 0.5}},
	{},
}

// Every backend computes the same advantages and weights as the oracle, and refuses the same groups.
func TestNormaliserIsTheOracle(t *testing.T) {
	backends := []kernels.Backend{kernels.CPU}
	if !cuda.Required() { // a machine with a GPU runs TestNormaliseOnTheDevice
		backends = append(backends, kernels.OfTable("emulated", emulated.Table(t)))
	}
	for _, on := range backends {
		for _, name := range []string{"mgrpo", "rllm", "trl", "dr_grpo", "rloo"} {
			convention, err := mgrpo.ConventionByName(name)
			if err != nil {
				t.Fatal(err)
			}
			want, err := oracle.Normalise(convention, raggedGroups)
			if err != nil {
				t.Fatal(err)
			}
			got, err := kernels.NormaliserOn(on)(convention, raggedGroups)
			if d := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-12), cmpopts.EquateEmpty()); err != nil || d != "" {
				t.Errorf("%s on %s: %v\n%s", name, on, err, d)
			}
		}
		for _, bad := range [][]mgrpo.RewardGroup{
			{{Rewards: []float64{1, 0}}, {Rewards: []float64{1, 2}, Weights: []float64{1, -1}}},
			{{Rewards: []float64{1, 0}, Weights: []float64{-1, 1}}},
		} {
			_, want := oracle.Normalise(mgrpo.DefaultConvention(), bad)
			_, got := kernels.NormaliserOn(on)(mgrpo.DefaultConvention(), bad)
			if want == nil || cmp.Diff(want, got) != "" {
				t.Errorf("%s: got %v, want %v", on, got, want)
			}
		}
	}
}

// An agent's advantages come from the kernels of its device.
func TestNormaliseOnTheDevice(t *testing.T) {
	want, err := oracle.Normalise(mgrpo.DefaultConvention(), raggedGroups)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range cudatest.Devices(t) {
		device, err := torch.Open(spec, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { device.Close() })
		got, err := Normalise(context.Background(), device, mgrpo.DefaultConvention(), raggedGroups)
		if err != nil {
			t.Fatal(err)
		}
		backend, _, _ := strings.Cut(spec, ":")
		if timed := got.GPUSeconds != nil; timed != device.IsCUDA() || timed && !(*got.GPUSeconds > 0) {
			t.Errorf("%s: %v seconds of a GPU", spec, got.GPUSeconds)
		}
		got.GPUSeconds = nil
		if d := cmp.Diff(Advantages{Groups: want, Backend: backend}, got, cmpopts.EquateApprox(0, 1e-12), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s differs (-want +got):\n%s", spec, d)
		}
	}
}
