package torch

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/mgrpo/mgrpo/cuda"
)

// open returns a CPU device with one thread. All its handles must be dropped by the end of the test.
func open(t testing.TB) *Device {
	t.Helper()
	return openOn(t, "cpu")
}

// onDevices runs f on the CPU, and on a GPU if the machine has one.
func onDevices(t *testing.T, f func(t *testing.T, d *Device)) {
	t.Run("cpu", func(t *testing.T) { f(t, open(t)) })
	t.Run("cuda", func(t *testing.T) {
		needGPU(t)
		f(t, openOn(t, "cuda"))
	})
}

// needGPU skips a test on a machine without a GPU, or fails it if MGRPO_REQUIRE_GPU is 1.
func needGPU(t *testing.T) {
	t.Helper()
	err := loadCUDA()
	if err != nil && cuda.Required() {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
}

func openOn(t testing.TB, spec string) *Device {
	t.Helper()
	return openWith(t, spec, 1)
}

func openWith(t testing.TB, spec string, threads int) *Device {
	t.Helper()
	before := liveHandles()
	d, err := Open(spec, threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if n := liveHandles() - before; n != 0 {
			t.Errorf("%d tensor handles leaked", n)
		}
	})
	return d
}

func do(t testing.TB, d *Device, f func(s *Scope)) {
	t.Helper()
	if err := d.Do(context.Background(), func(s *Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

// failure runs f on d and returns the *Error that it ends with.
func failure(t *testing.T, d *Device, f func(s *Scope)) *Error {
	t.Helper()
	err := d.Do(context.Background(), func(s *Scope) error { f(s); return nil })
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *torch.Error", err)
	}
	return e
}

func wantMessage(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Fatalf("error %v does not contain %q", err, part)
		}
	}
}

// values returns n standard normal numbers that float32 represents exactly.
func values(seed uint64, n int64) []float64 {
	r := rand.New(rand.NewPCG(seed, 1))
	v := make([]float64, n)
	for i := range v {
		v[i] = float64(float32(r.NormFloat64()))
	}
	return v
}

func product(shape []int64) int64 {
	n := int64(1)
	for _, size := range shape {
		n *= size
	}
	return n
}

func from(s *Scope, v []float64, dt DType, shape ...int64) *Tensor {
	return s.FromBytes(unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 8*len(v)), Float64, shape...).To(dt)
}

func float64s(t *Tensor) []float64 {
	v := make([]float64, t.Numel())
	if len(v) > 0 {
		t.To(Float64).Bytes(unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 8*len(v)))
	}
	return v
}

func wantClose(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= tolerance*(1+math.Abs(want[i]))) {
			t.Fatalf("%s: element %d is %g, want %g within %g", what, i, got[i], want[i], tolerance)
		}
	}
}
