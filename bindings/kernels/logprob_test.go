package kernels

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

func TestGoldenHeadRows(t *testing.T) { onEveryBackend(t, testGoldenHeadRows) }

func testGoldenHeadRows(t *testing.T, on Backend) {
	rows := algorithm.Heads(t).Rows
	for _, c := range rows {
		t.Run(c.Name+"/float64", func(t *testing.T) { compareRow[float64](t, on, c, inFloat64) })
		t.Run(c.Name+"/float32", func(t *testing.T) { compareRow[float32](t, on, c, inFloat32) })
	}
	golden.Count("head rows", len(rows))
}

func compareRow[T float](t *testing.T, on Backend, c algorithm.Row, tol tolerances) {
	t.Helper()
	m := arrays(t, on)
	vocab, target := int64(len(c.Logits)), Put(m, []int32{c.Target})
	row := func() ([]T, Array[T], Logits) {
		host := convert[T](c.Logits)
		values := Put(m, host)
		return host, values, Logits{Data: values.Pointer(), DType: dtypeOf[T](), Rows: 1, Vocab: vocab, Stride: vocab}
	}
	out := make([]T, 2)
	logp, entropy := Put(m, out[:1]), Put(m, out[1:])
	_, _, z := row()
	if err := TokenLogProb(on, z, target.Pointer(), nil, c.Temperature, logp.Pointer(), entropy.Pointer()); err != nil {
		t.Fatal(err)
	}
	download(t, logp, entropy)
	golden.Near(t, "logp", float64(out[0]), float64(c.Expect.LogProb), tol.rowValue)
	golden.Near(t, "entropy", float64(out[1]), float64(c.Expect.Entropy), tol.rowValue)
	for _, g := range []struct {
		name            string
		dlogp, dentropy T
		want            []mgrpo.Number
	}{{"dlogp", 1, 0, c.Expect.DLogProb}, {"dentropy", 0, 1, c.Expect.DEntropy}} {
		dz, values, z := row()
		dlogp, dentropy := Put(m, []T{g.dlogp}), Put(m, []T{g.dentropy})
		if err := TokenLogProbBackward(on, z, target.Pointer(), nil, c.Temperature, dlogp.Pointer(), dentropy.Pointer()); err != nil {
			t.Fatal(err)
		}
		download(t, values)
		for v, want := range g.want {
			golden.Near(t, fmt.Sprintf("%s %d", g.name, v), float64(dz[v]), float64(want), tol.rowGradient/c.Temperature)
		}
	}
}

func TestTokenLogProbRefusesTargets(t *testing.T) { onEveryBackend(t, testTokenLogProbRefusesTargets) }

func testTokenLogProbRefusesTargets(t *testing.T, on Backend) {
	want := Error{Op: "token_logprob", Status: InvalidArgument, Row: 1}
	if on != CPU {
		want.Status = NonFinite // mgrpo/logprob.h: a GPU reports both as NonFinite
	}
	m := arrays(t, on)
	z := Logits{Data: Put(m, make([]float64, 4)).Pointer(), DType: Float64, Rows: 2, Vocab: 2, Stride: 2}
	out := Put(m, make([]float64, 2)).Pointer()
	err := TokenLogProb(on, z, Put(m, []int32{0, 2}).Pointer(), nil, 1, out, nil)
	var got *Error
	if !errors.As(err, &got) || *got != want {
		t.Errorf("got %v, want %v", err, &want)
	}
}
