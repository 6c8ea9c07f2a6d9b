package kernels

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// readMask returns the mask of the rows that are read.
func readMask(b algorithm.Batch) []uint8 {
	mask := make([]uint8, len(b.Mask))
	for i, read := range b.Read() {
		if read {
			mask[i] = 1
		}
	}
	return mask
}

// padding is the number of columns after the vocabulary in the tests' logits. They contain NaN.
const padding = 3

func pad[T float](rows []T, vocab int) []T {
	var out []T
	for i := 0; i < len(rows); i += vocab {
		out = append(out, rows[i:i+vocab]...)
		for range padding {
			out = append(out, T(math.NaN()))
		}
	}
	return out
}

// unpad removes the columns that pad added, and checks that the padding was not overwritten.
func unpad[T float](t *testing.T, rows []T, vocab int) []T {
	t.Helper()
	var out []T
	for i := 0; i < len(rows); i += vocab + padding {
		out = append(out, rows[i:i+vocab]...)
		for p, x := range rows[i+vocab : i+vocab+padding] {
			if x == x {
				t.Errorf("padding column %d of row %d was written", p, i/(vocab+padding))
			}
		}
	}
	return out
}

type headResult[T float] struct {
	algorithm.Result[T]
	logp, entropy, dlogits []T
}

// runHead computes the loss of logits [rows, vocab] and their gradient.
func runHead[T float](t *testing.T, on Backend, h algorithm.Head, logits []T, vocab int) (headResult[T], error) {
	t.Helper()
	rows := len(h.Targets)
	host := pad(logits, vocab)
	m := arrays(t, on)
	buffer, targets, mask := Put(m, host), Put(m, h.Targets), Put(m, readMask(h.Batch))
	z := Logits{Data: buffer.Pointer(), DType: dtypeOf[T](), Rows: int64(rows), Vocab: int64(vocab), Stride: int64(vocab + padding)}
	r := headResult[T]{logp: make([]T, rows), entropy: make([]T, rows)}
	logp, entropy := Put(m, r.logp), Put(m, r.entropy)
	err := TokenLogProb(on, z, targets.Pointer(), mask.Pointer(), h.Temperature, logp.Pointer(), entropy.Pointer())
	if err != nil {
		return r, err
	}
	download(t, logp, entropy)
	batch := h.Batch
	batch.New, batch.Entropy = convert[mgrpo.Number](r.logp), convert[mgrpo.Number](r.entropy)
	if r.Result, err = evaluate[T](t, on, batch, h.Config, len(batch.Weight)); err != nil {
		return r, err
	}
	dlogp, dentropy := Put(m, r.DLogProb), Put(m, r.DEntropy)
	err = TokenLogProbBackward(on, z, targets.Pointer(), mask.Pointer(), h.Temperature, dlogp.Pointer(), dentropy.Pointer())
	download(t, buffer)
	r.dlogits = unpad(t, host, vocab)
	return r, err
}

// runFused computes the same as runHead in one call.
func runFused[T float](t *testing.T, on Backend, h algorithm.Head, logits []T, vocab int) (headResult[T], error) {
	t.Helper()
	n := len(h.Targets)
	host := pad(logits, vocab)
	m := arrays(t, on)
	buffer := Put(m, host)
	z := Logits{Data: buffer.Pointer(), DType: dtypeOf[T](), Rows: int64(n), Vocab: int64(vocab), Stride: int64(vocab + padding)}
	r := headResult[T]{logp: make([]T, n), entropy: make([]T, n)}
	coefficient, totals, err := LossCoefficients(h.Config, trajectories(h.Batch))
	if err != nil {
		return r, err
	}
	batch, _, _ := microBatch[T](m, h.Batch, coefficient, 0, len(h.Batch.Weight))
	logp, entropy := Put(m, r.logp), Put(m, r.entropy)
	sums, err := PolicyLossFromLogits(on, z, Put(m, h.Targets).Pointer(), h.Temperature, batch, h.Config, logp.Pointer(), entropy.Pointer())
	download(t, buffer, logp, entropy)
	r.Stats, r.dlogits = sums.Stats(totals), unpad(t, host, vocab)
	return r, err
}

// matmul multiplies a [m,k] by b [k,n], both given by their elements, with sums in float64. It
// skips zeros of a, so a row that is not read stays 0 for all values of b.
func matmul[T float](m, n, k int, a, b func(i, j int) T) []T {
	out := make([]T, m*n)
	for i := range m {
		for j := range n {
			sum := 0.0
			for l := range k {
				if x := float64(a(i, l)); x != 0 {
					sum += x * float64(b(l, j))
				}
			}
			out[i*n+j] = T(sum)
		}
	}
	return out
}

type linearResult[T float] struct {
	headResult[T]
	dhidden, dweight []T
}

// runLinear computes the loss of hidden [rows, d] and weight [vocab, d], and their gradients.
func runLinear[T float](t *testing.T, on Backend, h algorithm.Head, hidden, weight []T, d int) (r linearResult[T], err error) {
	t.Helper()
	rows, vocab := len(hidden)/d, len(weight)/d
	mask := readMask(h.Batch)
	readRow := func(i, l int) T {
		if mask[i] == 0 {
			return 0
		}
		return hidden[i*d+l]
	}
	logits := matmul(rows, vocab, d, readRow, func(l, v int) T { return weight[v*d+l] })
	if r.headResult, err = runHead(t, on, h, logits, vocab); err != nil {
		return r, err
	}
	r.dhidden = matmul(rows, d, vocab, func(i, v int) T { return r.dlogits[i*vocab+v] }, func(v, l int) T { return weight[v*d+l] })
	r.dweight = matmul(vocab, d, rows, func(v, i int) T { return r.dlogits[i*vocab+v] }, func(i, l int) T { return hidden[i*d+l] })
	return r, nil
}

func compareHead[T float](t *testing.T, h algorithm.Head, got headResult[T], tol tolerances) {
	t.Helper()
	for i, read := range readMask(h.Batch) {
		if read == 0 {
			continue
		}
		golden.Near(t, fmt.Sprintf("logp_new %d", i), float64(got.logp[i]), float64(h.Expect.LogProb[i]), tol.rowValue)
		if h.Expect.Entropy != nil {
			golden.Near(t, fmt.Sprintf("entropy %d", i), float64(got.entropy[i]), float64(h.Expect.Entropy[i]), tol.rowValue)
		}
	}
	golden.Near(t, "loss", got.Stats.Loss, float64(h.Expect.Loss.Loss), tol.loss)
	if h.Expect.Stats != nil {
		algorithm.CompareLoss(t, "loss", got.Result, h.Expect.Loss, tol.loss, tol.gradient)
	}
	if h.Expect.DLogits != nil {
		golden.NearAll(t, "dlogits", got.dlogits, slices.Concat(h.Expect.DLogits...), tol.head)
	}
}

func compareLogits[T float](t *testing.T, on Backend, h algorithm.Head, tol tolerances) {
	t.Helper()
	got, err := runHead(t, on, h, convert[T](slices.Concat(h.Logits...)), len(h.Logits[0]))
	if err != nil {
		t.Fatal(err)
	}
	compareHead(t, h, got, tol)
	if !h.Config.Ratio.TokenLevel() {
		return
	}
	fused, err := runFused(t, on, h, convert[T](slices.Concat(h.Logits...)), len(h.Logits[0]))
	if err != nil {
		t.Fatal(err)
	}
	fused.Coefficient, fused.DLogProb, fused.DEntropy = got.Coefficient, got.DLogProb, got.DEntropy // the fused call does not return these
	compareHead(t, h, fused, tol)
}

func compareLinear[T float](t *testing.T, on Backend, h algorithm.Head, tol tolerances) {
	t.Helper()
	got, err := runLinear(t, on, h, convert[T](slices.Concat(h.Hidden...)), convert[T](slices.Concat(h.Weight...)), len(h.Hidden[0]))
	if err != nil {
		t.Fatal(err)
	}
	// Logits from float32 products contain the rounding of the products.
	loose := tol
	if dtypeOf[T]() == Float32 {
		loose.rowValue = tol.loss
	}
	compareHead(t, h, got.headResult, loose)
	golden.NearAll(t, "dhidden", got.dhidden, slices.Concat(h.Expect.DHidden...), tol.head)
	golden.NearAll(t, "dweight", got.dweight, slices.Concat(h.Expect.DWeight...), tol.head)
}

func TestGoldenHead(t *testing.T) { onEveryBackend(t, testGoldenHead) }

func testGoldenHead(t *testing.T, on Backend) {
	file := algorithm.Heads(t)
	for _, h := range file.Logits {
		t.Run("logits/"+h.Name+"/float64", func(t *testing.T) { compareLogits[float64](t, on, h, inFloat64) })
		t.Run("logits/"+h.Name+"/float32", func(t *testing.T) { compareLogits[float32](t, on, h, inFloat32) })
	}
	for _, h := range file.Linear {
		t.Run("linear/"+h.Name+"/float64", func(t *testing.T) { compareLinear[float64](t, on, h, inFloat64) })
		t.Run("linear/"+h.Name+"/float32", func(t *testing.T) { compareLinear[float32](t, on, h, inFloat32) })
	}
	golden.Count("head", len(file.Logits)+len(file.Linear))
}

func TestGoldenHeadLarge(t *testing.T) { onEveryBackend(t, testGoldenHeadLarge) }

func testGoldenHeadLarge(t *testing.T, on Backend) {
	h := algorithm.LargeHead(t)
	t.Run("float64", func(t *testing.T) { compareLinear[float64](t, on, h, inFloat64) })
	t.Run("float32", func(t *testing.T) { compareLinear[float32](t, on, h, inFloat32) })
	golden.Count("head_large", 1)
}

// attribute turns a kernel's row error into the refusal of docs/algorithm.md §7, which names the input with the bad value.
func attribute(h algorithm.Head, err error) error {
	var row *Error
	if !errors.As(err, &row) || row.Status != NonFinite {
		return err
	}
	if h.Hidden == nil {
		return &mgrpo.Refusal{Code: mgrpo.NonFiniteInput, Field: "logits", Token: new(int(row.Row))}
	}
	hidden := convert[float64](h.Hidden[row.Row])
	if slices.ContainsFunc(hidden, func(x float64) bool { return x-x != 0 }) { // true for NaN and Inf
		return &mgrpo.Refusal{Code: mgrpo.NonFiniteInput, Field: "hidden", Token: new(int(row.Row))}
	}
	return &mgrpo.Refusal{Code: mgrpo.NonFiniteInput, Field: "weight"}
}

func TestGoldenNonFiniteHead(t *testing.T) { onEveryBackend(t, testGoldenNonFiniteHead) }

func testGoldenNonFiniteHead(t *testing.T, on Backend) {
	heads := algorithm.NonFiniteHeads(t)
	for i, h := range heads {
		t.Run(fmt.Sprintf("%02d %s/float64", i, h.Name), func(t *testing.T) { compareNonFinite[float64](t, on, h, inFloat64) })
		t.Run(fmt.Sprintf("%02d %s/float32", i, h.Name), func(t *testing.T) { compareNonFinite[float32](t, on, h, inFloat32) })
	}
	golden.Count("nonfinite head", len(heads))
}

func compareNonFinite[T float](t *testing.T, on Backend, h algorithm.Head, tol tolerances) {
	t.Helper()
	if h.Expect.Error == nil {
		if h.Hidden == nil {
			compareLogits[T](t, on, h, tol)
		} else {
			compareLinear[T](t, on, h, tol)
		}
		return
	}
	var err error
	if h.Hidden == nil {
		_, err = runHead(t, on, h, convert[T](slices.Concat(h.Logits...)), len(h.Logits[0]))
		_, fused := runFused(t, on, h, convert[T](slices.Concat(h.Logits...)), len(h.Logits[0]))
		golden.SameError(t, "in one call", bare(attribute(h, fused)), h.Expect.Error)
	} else {
		_, err = runLinear(t, on, h, convert[T](slices.Concat(h.Hidden...)), convert[T](slices.Concat(h.Weight...)), len(h.Hidden[0]))
	}
	golden.SameError(t, "refusal", bare(attribute(h, err)), h.Expect.Error)
}

// bare returns a refusal without trajectory and count, which the head's cases do not specify.
func bare(err error) error {
	var refused *mgrpo.Refusal
	if !errors.As(err, &refused) {
		return err
	}
	return &mgrpo.Refusal{Code: refused.Code, Field: refused.Field, Token: refused.Token}
}
