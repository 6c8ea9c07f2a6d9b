package kernels

import (
	"github.com/mgrpo/mgrpo/trainer/mgrpo"

	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"testing"
	"unsafe"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// goldenBatch is a packed batch in the format of the goldens; absent token fields are nil.
type goldenBatch struct {
	CuSeqlens []int64        `json:"cu_seqlens"`
	Group     []int64        `json:"group"`
	Weight    []mgrpo.Number `json:"weight"`
	Advantage []mgrpo.Number `json:"advantage"`
	Mask      []mgrpo.Number `json:"mask"`

	LogpNew       []mgrpo.Number `json:"logp_new"`
	LogpOld       []mgrpo.Number `json:"logp_old"`
	LogpBehaviour []mgrpo.Number `json:"logp_behaviour"`
	LogpRef       []mgrpo.Number `json:"logp_ref"`
	Entropy       []mgrpo.Number `json:"entropy"`
}

// field returns the array with a golden's name.
func (b *goldenBatch) field(name string) *[]mgrpo.Number {
	return map[string]*[]mgrpo.Number{
		"weight": &b.Weight, "advantage": &b.Advantage, "mask": &b.Mask, "logp_new": &b.LogpNew, "logp_old": &b.LogpOld,
		"logp_behaviour": &b.LogpBehaviour, "logp_ref": &b.LogpRef, "entropy": &b.Entropy,
	}[name]
}

func (b goldenBatch) mask() []uint8 {
	mask := make([]uint8, len(b.Mask))
	for i, u := range b.Mask {
		mask[i] = uint8(u)
	}
	return mask
}

func (b goldenBatch) trajectories() Trajectories {
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

// result is the result of a whole batch.
type result[T float] struct {
	stats              mgrpo.LossStats
	coefficient        []float64
	dlogpNew, dentropy []T
}

// microBatch returns trajectories from..to-1, in m.
func microBatch[T float](m *Memory, b goldenBatch, coefficient []float64, from, to int) (LossBatch, int64, int64) {
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
		Coefficient: coefficient[from:to], Mask: Put(m, b.mask()[begin:end]).Pointer(), DType: dtypeOf[T](),
		LogpNew: tokens(b.LogpNew), LogpOld: tokens(b.LogpOld), LogpBehaviour: tokens(b.LogpBehaviour),
		LogpRef: tokens(b.LogpRef), Entropy: tokens(b.Entropy),
	}, begin, end
}

// evaluate runs a batch in micro-batches of `size` trajectories.
func evaluate[T float](t *testing.T, on Backend, b goldenBatch, objective mgrpo.Objective, size int) (r result[T], err error) {
	coefficient, totals, err := LossCoefficients(objective, b.trajectories())
	if err != nil {
		return r, err
	}
	r = result[T]{coefficient: coefficient, dlogpNew: make([]T, len(b.Mask)), dentropy: make([]T, len(b.Mask))}
	t.Helper()
	m := arrays(t, on)
	var sums LossSums
	for from := 0; from < len(b.Weight); from += size {
		batch, begin, end := microBatch[T](m, b, coefficient, from, min(from+size, len(b.Weight)))
		dlogpNew, dentropy := Put(m, r.dlogpNew[begin:end]), Put(m, r.dentropy[begin:end])
		part, err := PolicyLoss(on, batch, objective, dlogpNew.Pointer(), dentropy.Pointer())
		if err != nil {
			return r, err
		}
		download(t, dlogpNew, dentropy)
		sums.Merge(part)
	}
	r.stats = sums.Stats(totals)
	return r, nil
}

type goldenLoss struct {
	Loss        mgrpo.Number            `json:"loss"`
	LossPolicy  mgrpo.Number            `json:"loss_policy"`
	LossKL      mgrpo.Number            `json:"loss_kl"`
	LossEntropy mgrpo.Number            `json:"loss_entropy"`
	TokenCoef   []mgrpo.Number          `json:"token_coef"`
	DlogpNew    []mgrpo.Number          `json:"dlogp_new"`
	Dentropy    []mgrpo.Number          `json:"dentropy"`
	Stats       map[string]mgrpo.Number `json:"stats"`
	Error       *mgrpo.Refusal          `json:"error"`
}

func compareLoss[T float](t *testing.T, on Backend, b goldenBatch, objective mgrpo.Objective, want goldenLoss, loss, gradient float64) {
	t.Helper()
	for _, size := range []int{len(b.Weight), 3} {
		got, err := evaluate[T](t, on, b, objective, size)
		if want.Error != nil {
			// Positions count within a micro-batch, so they can be compared only for the whole batch.
			if size == len(b.Weight) {
				golden.SameError(t, "refusal", err, want.Error)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		compareResult(t, fmt.Sprintf("micro-batches of %d: ", size), got, want, loss, gradient)
	}
}

func compareResult[T float](t *testing.T, what string, got result[T], want goldenLoss, loss, gradient float64) {
	t.Helper()
	golden.Near(t, what+"loss", got.stats.Loss, float64(want.Loss), loss)
	golden.Near(t, what+"loss_policy", got.stats.LossPolicy, float64(want.LossPolicy), loss)
	golden.Near(t, what+"loss_kl", got.stats.LossKL, float64(want.LossKL), loss)
	golden.Near(t, what+"loss_entropy", got.stats.LossEntropy, float64(want.LossEntropy), loss)
	if want.TokenCoef != nil {
		golden.NearAll(t, what+"token_coef", got.coefficient, want.TokenCoef, loss)
	}
	if want.DlogpNew != nil {
		golden.NearAll(t, what+"dlogp_new", got.dlogpNew, want.DlogpNew, gradient)
	}
	if want.Dentropy != nil {
		golden.NearAll(t, what+"dentropy", got.dentropy, want.Dentropy, gradient)
	}
	compareStats(t, what, got.stats, want.Stats, loss)
}

// compareStats checks that the reported statistics are exactly the expected ones.
func compareStats(t *testing.T, what string, got mgrpo.LossStats, want map[string]mgrpo.Number, tolerance float64) {
	t.Helper()
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]float64
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"loss", "loss_policy", "loss_kl", "loss_entropy"} {
		delete(fields, part)
	}
	for name, value := range want {
		if _, ok := fields[name]; !ok {
			t.Errorf("%sstatistic %s is missing", what, name)
		}
		golden.Near(t, what+name, fields[name], float64(value), tolerance)
	}
	if len(fields) != len(want) {
		t.Errorf("%s%d statistics, want %d", what, len(fields), len(want))
	}
}

func TestGoldenLosses(t *testing.T) { onEveryBackend(t, testGoldenLosses) }

func testGoldenLosses(t *testing.T, on Backend) {
	var file struct {
		Batches map[string]goldenBatch `json:"batches"`
		Cases   []struct {
			Name   string          `json:"name"`
			Batch  string          `json:"batch"`
			Config mgrpo.Objective `json:"config"`
			Expect goldenLoss      `json:"expect"`
		} `json:"cases"`
	}
	golden.Read(t, "mgrpo", "losses.json", &file)
	for _, c := range file.Cases {
		t.Run(c.Name+"/float64", func(t *testing.T) {
			compareLoss[float64](t, on, file.Batches[c.Batch], c.Config, c.Expect, inFloat64.loss, inFloat64.gradient)
		})
		t.Run(c.Name+"/float32", func(t *testing.T) {
			compareLoss[float32](t, on, file.Batches[c.Batch], c.Config, c.Expect, inFloat32.loss, inFloat32.gradient)
		})
	}
	golden.Count("losses", len(file.Cases))
}

// tensorBatch reads a batch from the arrays of a safetensors file.
func tensorBatch(a golden.Tensors) goldenBatch {
	return goldenBatch{
		CuSeqlens: a["cu_seqlens"].Int64s(), Group: a["group"].Int64s(), Weight: convert[mgrpo.Number](a["weight"].Data),
		Advantage: convert[mgrpo.Number](a["advantage"].Data), Mask: convert[mgrpo.Number](a["mask"].Data), LogpNew: convert[mgrpo.Number](a["logp_new"].Data),
		LogpOld: convert[mgrpo.Number](a["logp_old"].Data), LogpBehaviour: convert[mgrpo.Number](a["logp_behaviour"].Data),
		LogpRef: convert[mgrpo.Number](a["logp_ref"].Data), Entropy: convert[mgrpo.Number](a["entropy"].Data),
	}
}

func TestGoldenLossesLong(t *testing.T) { onEveryBackend(t, testGoldenLossesLong) }

func testGoldenLossesLong(t *testing.T, on Backend) {
	var file struct {
		Cases map[string]struct {
			Config mgrpo.Objective `json:"config"`
			Expect goldenLoss      `json:"expect"`
		} `json:"cases"`
	}
	golden.Read(t, "mgrpo", "losses_long.json", &file)
	arrays := golden.ReadTensors(t, golden.File(t, "mgrpo", "losses_long.safetensors"))
	batch := tensorBatch(arrays)
	for name, c := range file.Cases {
		c.Expect.DlogpNew = convert[mgrpo.Number](arrays["dlogp_new."+name].Data)
		t.Run(name+"/float64", func(t *testing.T) {
			compareLoss[float64](t, on, batch, c.Config, c.Expect, inFloat64.long, inFloat64.long)
		})
		t.Run(name+"/float32", func(t *testing.T) {
			compareLoss[float32](t, on, batch, c.Config, c.Expect, inFloat32.long, inFloat32.long)
		})
	}
	golden.Count("losses_long", len(file.Cases))
}

type nonFiniteFile struct {
	Base  goldenBatch `json:"base"`
	Cases []struct {
		Name   string          `json:"name"`
		Config mgrpo.Objective `json:"config"`
		Edits  []struct {
			Field string       `json:"field"`
			Index int          `json:"index"`
			Value mgrpo.Number `json:"value"`
		} `json:"edits"`
		Absent string     `json:"absent"`
		Expect goldenLoss `json:"expect"`
	} `json:"cases"`
	Head nonFiniteHead `json:"head"`
}

func TestGoldenNonFinite(t *testing.T) { onEveryBackend(t, testGoldenNonFinite) }

func testGoldenNonFinite(t *testing.T, on Backend) {
	var file nonFiniteFile
	golden.Read(t, "mgrpo", "nonfinite.json", &file)
	for i, c := range file.Cases {
		var fresh nonFiniteFile // the edits change arrays in place
		golden.Read(t, "mgrpo", "nonfinite.json", &fresh)
		batch := fresh.Base
		for _, e := range c.Edits {
			(*batch.field(e.Field))[e.Index] = e.Value
		}
		if c.Absent != "" {
			*batch.field(c.Absent) = nil
		}
		t.Run(fmt.Sprintf("%02d %s/float64", i, c.Name), func(t *testing.T) {
			compareLoss[float64](t, on, batch, c.Config, c.Expect, inFloat64.loss, inFloat64.gradient)
		})
		t.Run(fmt.Sprintf("%02d %s/float32", i, c.Name), func(t *testing.T) {
			compareLoss[float32](t, on, batch, c.Config, c.Expect, inFloat32.loss, inFloat32.gradient)
		})
	}
	golden.Count("nonfinite", len(file.Cases))
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
