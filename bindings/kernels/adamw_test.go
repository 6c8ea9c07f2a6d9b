package kernels

import (
	"github.com/mgrpo/mgrpo/trainer/golden"

	"errors"
	"math"
	"slices"
	"testing"
)

func TestAdamWStep(t *testing.T) { onEveryBackend(t, testAdamWStep) }

func testAdamWStep(t *testing.T, on Backend) {
	p, m, v := []float32{1, -2}, make([]float32, 2), make([]float32, 2)
	g, bf16 := []float32{3, -4}, make([]uint16, 2)
	a := arrays(t, on)
	ap, am, av, ag, ab := Put(a, p), Put(a, m), Put(a, v), Put(a, g), Put(a, bf16)
	norm, err := GradNorm(on, ag.Pointer(), 2)
	if err != nil || norm != 5 {
		t.Fatalf("norm %v, %v", norm, err)
	}
	config := AdamWConfig{LR: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.5, Clip: 1, Step: 1}
	if err := AdamW(on, ap.Pointer(), am.Pointer(), av.Pointer(), ag.Pointer(), ab.Pointer(), 2, norm, config); err != nil {
		t.Fatal(err)
	}
	download(t, ap, am, av, ab)
	// The first step moves by lr against the gradient's sign, after decay by lr * weight_decay.
	golden.NearAll(t, "p", p, []float64{0.95 - 0.1, -1.9 + 0.1}, 1e-6)
	golden.NearAll(t, "m", m, []float64{0.1 * 0.6, -0.1 * 0.8}, 1e-6)
	if want := uint16(math.Float32bits(0.8515625) >> 16); bf16[0] != want {
		t.Errorf("bf16 %#x, want %#x", bf16[0], want)
	}
}

func TestAdamWNonFiniteChangesNothing(t *testing.T) {
	onEveryBackend(t, testAdamWNonFiniteChangesNothing)
}

func testAdamWNonFiniteChangesNothing(t *testing.T, on Backend) {
	p, m, v, g := []float32{1}, []float32{2}, []float32{3}, []float32{float32(math.NaN())}
	a := arrays(t, on)
	ap, am, av, ag := Put(a, p), Put(a, m), Put(a, v), Put(a, g)
	norm, err := GradNorm(on, ag.Pointer(), 1)
	if err != nil {
		t.Fatal(err)
	}
	err = AdamW(on, ap.Pointer(), am.Pointer(), av.Pointer(), ag.Pointer(), nil, 1, norm, AdamWConfig{LR: 1, Beta2: 0.5, Eps: 1, Step: 1})
	download(t, ap, am, av)
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != NonFinite {
		t.Errorf("got %v, want NonFinite", err)
	}
	if !slices.Equal([]float32{p[0], m[0], v[0]}, []float32{1, 2, 3}) {
		t.Errorf("a refused step changed the state: %v %v %v", p, m, v)
	}
}
