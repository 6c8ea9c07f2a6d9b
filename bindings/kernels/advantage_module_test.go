//go:build cuda

package kernels

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// module returns the path of a file of compiled kernels, which is beside the libraries.
func module(t *testing.T, name string) string {
	t.Helper()
	folders := append([]string{"../../build/lib"}, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)
	for _, folder := range folders {
		if file := filepath.Join(folder, name); exists(file) {
			return file
		}
	}
	t.Fatalf("no %s in %q: make build CUDA=1 builds it", name, folders)
	return ""
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// The shape of a launch, as in kernels/cuda/advantage.cu.
const (
	advantageThreads = 128
	groupsOfABlock   = 16
)

// launched is the output of the kernel in a module.
type launched struct {
	advantages []float64
	stats      []mgrpo.GroupStats
	refusals   []int64
	first      int64
}

// launchAdvantage runs the group_advantage kernel of the module through gorgonia/cu, on arrays in the memory of the GPU.
func launchAdvantage(t *testing.T, k *cuda.Kernel, rewards, weights []float64, offsets []int64, convention mgrpo.Convention) (out launched) {
	t.Helper()
	groups := len(offsets) - 1
	out = launched{make([]float64, len(rewards)), make([]mgrpo.GroupStats, groups), make([]int64, groups), 0}
	first := []int64{-1}
	c, err := encodeConvention(convention)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMemory(CUDA(nil))
	r, w, at := Put(m, rewards), Put(m, weights), Put(m, offsets)
	a, s, refusals, least := Put(m, out.advantages), Put(m, out.stats), Put(m, out.refusals), Put(m, first)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	address := func(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }
	err = k.Launch((groups+groupsOfABlock-1)/groupsOfABlock, advantageThreads, nil,
		address(r.Pointer()), address(w.Pointer()), address(at.Pointer()), uint64(groups), address(a.Pointer()), address(s.Pointer()),
		address(refusals.Pointer()), address(least.Pointer()), uint64(c.std), uint64(c.baseline), math.Float64bits(convention.Eps), math.Float64bits(convention.SigmaMin))
	if err == nil {
		err = errors.Join(a.Download(), s.Download(), refusals.Download(), least.Download())
	}
	if err = errors.Join(err, m.Free()); err != nil {
		t.Fatal(err)
	}
	out.first = first[0]
	return out
}

// someGroups returns ragged groups: empty ones, equal rewards, sizes on both sides of the limit
// of small groups, and more groups than a block takes.
func someGroups() (rewards, weights []float64, offsets []int64) {
	random := rand.New(rand.NewPCG(3, 8))
	offsets = []int64{0}
	for g := range 70 {
		size := []int{8, 1, 0, 16, 255, 256, 257, 5, 1000}[g%9]
		for range size {
			reward := random.Float64()
			if g%7 == 3 {
				reward = 0.5
			}
			rewards, weights = append(rewards, reward), append(weights, float64(random.IntN(4)))
		}
		offsets = append(offsets, int64(len(rewards)))
	}
	return rewards, weights, offsets
}

// TestAdvantageThroughDriver launches group_advantage through gorgonia/cu. Every bit equals the library's result.
func TestAdvantageThroughDriver(t *testing.T) {
	devices, err := cuda.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) == 0 {
		t.Skip("no GPU: gorgonia/cu launches nothing here")
	}
	k, err := cuda.LoadKernel(0, module(t, "mgrpo_group_advantage.fatbin"), "mgrpo_group_advantage")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}()
	rewards, weights, offsets := someGroups()
	for _, c := range []mgrpo.Convention{
		{Std: mgrpo.StdPopulation, Baseline: mgrpo.BaselineMean, SigmaMin: 1e-6},
		{Std: mgrpo.StdSample, Baseline: mgrpo.BaselineLeaveOneOut, Eps: 1e-4},
		{Std: mgrpo.StdNone, Baseline: mgrpo.BaselineMean},
	} {
		for _, w := range [][]float64{weights, nil} {
			want, stats, err := GroupAdvantage(CUDA(nil), rewards, w, offsets, c)
			if err != nil {
				t.Fatal(err)
			}
			got := launchAdvantage(t, k, rewards, w, offsets, c)
			if !sameBits(got.advantages, want) || !slices.Equal(got.stats, stats) || got.first != -1 {
				t.Errorf("%+v, weights %v: another result than the library's; first refusal %d", c, w != nil, got.first)
			}
		}
	}
	const refused = 40 // the group of a reward that is not finite
	rewards[offsets[refused]] = math.NaN()
	got := launchAdvantage(t, k, rewards, nil, offsets, mgrpo.Convention{Std: mgrpo.StdNone, Baseline: mgrpo.BaselineMean})
	if got.first != refused || got.refusals[refused] != 1 { // member 0, MGRPO_ADVANTAGE_NON_FINITE_REWARD
		t.Errorf("first refusal %d, key %d", got.first, got.refusals[refused])
	}
	if _, err := cuda.LoadKernel(0, module(t, "mgrpo_group_advantage.fatbin"), "absent"); err == nil {
		t.Error("an absent function was found")
	}
	if _, err := cuda.LoadKernel(0, "absent.fatbin", "mgrpo_group_advantage"); err == nil {
		t.Error("an absent file was loaded")
	}
}

func sameBits(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Float64bits(x) == math.Float64bits(y) })
}
