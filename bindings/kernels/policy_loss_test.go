package kernels

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"unsafe"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

func bytesOf(mask []int) []uint8 {
	out := make([]uint8, len(mask))
	for i, u := range mask {
		out[i] = uint8(u)
	}
	return out
}

func trajectories(b algorithm.Batch) Trajectories {
	t := Trajectories{Group: b.Group, Weight: convert[float64](b.Weight), Advantage: convert[float64](b.Advantage)}
	for j := range b.Weight {
		trained := int64(0)
		for _, u := range b.Mask[b.CuSeqlens[j]:b.CuSeqlens[j+1]] {
			trained += int64(u)
		}
		t.Trained = append(t.Trained, trained)
	}
	return t
}

// microBatch returns trajectories from..to-1, in m.
func microBatch[T float](m *Memory, b algorithm.Batch, coefficient []float64, from, to int) (LossBatch, int64, int64) {
	begin, end := b.CuSeqlens[from], b.CuSeqlens[to]
	cu := make([]int64, 0, to-from+1)
	for _, c := range b.CuSeqlens[from : to+1] {
		cu = append(cu, c-begin)
	}
	tokens := func(field []mgrpo.Number) unsafe.Pointer {
		if field == nil {
			return nil
		}
		return Put(m, convert[T](field[begin:end])).Pointer()
	}
	return LossBatch{
		CuSeqlens: cu, Weight: convert[float64](b.Weight[from:to]), Advantage: convert[float64](b.Advantage[from:to]),
		Coefficient: coefficient[from:to], Mask: Put(m, bytesOf(b.Mask[begin:end])).Pointer(), DType: dtypeOf[T](),
		LogpNew: tokens(b.New), LogpOld: tokens(b.Old), LogpBehaviour: tokens(b.Behaviour), LogpRef: tokens(b.Ref), Entropy: tokens(b.Entropy),
	}, begin, end
}

// evaluate runs a batch in micro-batches of `size` trajectories.
func evaluate[T float](t *testing.T, on Backend, b algorithm.Batch, objective mgrpo.Objective, size int) (r algorithm.Result[T], err error) {
	coefficient, totals, err := LossCoefficients(objective, trajectories(b))
	if err != nil {
		return r, err
	}
	r = algorithm.Result[T]{Coefficient: coefficient, DLogProb: make([]T, len(b.Mask)), DEntropy: make([]T, len(b.Mask))}
	t.Helper()
	m := arrays(t, on)
	var sums LossSums
	for from := 0; from < len(b.Weight); from += size {
		batch, begin, end := microBatch[T](m, b, coefficient, from, min(from+size, len(b.Weight)))
		dlogp, dentropy := Put(m, r.DLogProb[begin:end]), Put(m, r.DEntropy[begin:end])
		part, err := PolicyLoss(on, batch, objective, dlogp.Pointer(), dentropy.Pointer())
		if err != nil {
			return r, err
		}
		download(t, dlogp, dentropy)
		sums.Merge(part)
	}
	r.Stats = sums.Stats(totals)
	return r, nil
}

func compareLoss[T float](t *testing.T, on Backend, c algorithm.LossCase, loss, gradient float64) {
	t.Helper()
	for _, size := range []int{len(c.Batch.Weight), 3} {
		got, err := evaluate[T](t, on, c.Batch, c.Config, size)
		if c.Expect.Error != nil {
			// Positions count within a micro-batch, so they can be compared only for the whole batch.
			if size == len(c.Batch.Weight) {
				golden.SameError(t, "refusal", err, c.Expect.Error)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		algorithm.CompareLoss(t, fmt.Sprintf("micro-batches of %d", size), got, c.Expect, loss, gradient)
	}
}

func compareLosses(t *testing.T, on Backend, cases []algorithm.LossCase) {
	for i, c := range cases {
		name := fmt.Sprintf("%02d %s", i, c.Name)
		t.Run(name+"/float64", func(t *testing.T) { compareLoss[float64](t, on, c, inFloat64.loss, inFloat64.gradient) })
		t.Run(name+"/float32", func(t *testing.T) { compareLoss[float32](t, on, c, inFloat32.loss, inFloat32.gradient) })
	}
}

func TestGoldenLosses(t *testing.T) { onEveryBackend(t, testGoldenLosses) }

func testGoldenLosses(t *testing.T, on Backend) {
	_, cases := algorithm.Losses(t)
	compareLosses(t, on, cases)
	golden.Count("losses", len(cases))
}

func TestGoldenLossesLong(t *testing.T) { onEveryBackend(t, testGoldenLossesLong) }

func testGoldenLossesLong(t *testing.T, on Backend) {
	cases := algorithm.LongLosses(t)
	for _, c := range cases {
		t.Run(c.Name+"/float64", func(t *testing.T) { compareLoss[float64](t, on, c, inFloat64.long, inFloat64.long) })
		t.Run(c.Name+"/float32", func(t *testing.T) { compareLoss[float32](t, on, c, inFloat32.long, inFloat32.long) })
	}
	golden.Count("losses_long", len(cases))
}

func TestGoldenNonFinite(t *testing.T) { onEveryBackend(t, testGoldenNonFinite) }

func testGoldenNonFinite(t *testing.T, on Backend) {
	cases := algorithm.NonFiniteLosses(t)
	compareLosses(t, on, cases)
	golden.Count("nonfinite", len(cases))
}

// Merging an empty micro-batch does not change the statistics. Two halves give the same statistics as the whole batch.
func TestEmptyMicroBatchIsNeutral(t *testing.T) { onEveryBackend(t, testEmptyMicroBatchIsNeutral) }

func testEmptyMicroBatchIsNeutral(t *testing.T, on Backend) {
	objective := mgrpo.DefaultObjective()
	m := arrays(t, on)
	batch := LossBatch{CuSeqlens: []int64{0, 2}, Weight: []float64{1}, Advantage: []float64{1}, Coefficient: []float64{0}, DType: Float64,
		Mask: Put(m, []uint8{0, 0}).Pointer(), LogpNew: Put(m, []float64{math.NaN(), 1}).Pointer(), LogpOld: Put(m, []float64{0, 0}).Pointer()}
	host := []float64{7, 7}
	gradient := Put(m, host)
	empty, err := PolicyLoss(on, batch, objective, gradient.Pointer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	download(t, gradient)
	if host[0] != 0 || host[1] != 0 {
		t.Errorf("gradient %v, want zeros", host)
	}
	batch.Mask, batch.Coefficient = Put(m, []uint8{0, 1}).Pointer(), []float64{1}
	batch.LogpNew = Put(m, []float64{0, -1}).Pointer()
	full, err := PolicyLoss(on, batch, objective, gradient.Pointer(), nil)
	if err != nil {
		t.Fatal(err)
	}
	merged := empty
	merged.Merge(full)
	if got, want := merged.Stats(LossTotals{}), full.Stats(LossTotals{}); !reflect.DeepEqual(got, want) {
		t.Errorf("merged %+v, want %+v", got, want)
	}
}

func TestObjectiveRefusals(t *testing.T) {
	for name, edit := range map[string]func(*mgrpo.Objective){
		"ratio":       func(c *mgrpo.Objective) { c.Ratio = "x" },
		"aggregation": func(c *mgrpo.Objective) { c.Aggregation = "" },
		"kl":          func(c *mgrpo.Objective) { c.KL = "k4" },
		"dual_clip 1": func(c *mgrpo.Objective) { c.DualClip = new(1.0) },
		"dual_clip 0": func(c *mgrpo.Objective) { c.DualClip = new(0.0) },
		"clamp 89":    func(c *mgrpo.Objective) { c.LogRatioClamp = new(89.0) },
		"tis_cap NaN": func(c *mgrpo.Objective) { c.TISCap = new(math.NaN()) },
		"kl_coef":     func(c *mgrpo.Objective) { c.KLCoef = 1 },
		"constant":    func(c *mgrpo.Objective) { c.Aggregation = mgrpo.ConstantLength },
		"eps_low":     func(c *mgrpo.Objective) { c.EpsLow = math.Inf(1) },
	} {
		objective := mgrpo.DefaultObjective()
		edit(&objective)
		_, _, err := LossCoefficients(objective, Trajectories{Group: []int64{0}, Weight: []float64{1}, Advantage: []float64{1}, Trained: []int64{1}})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
