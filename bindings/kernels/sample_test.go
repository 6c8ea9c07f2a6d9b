package kernels

import (
	"github.com/mgrpo/mgrpo/trainer/golden"

	"errors"
	"math"
	"testing"
)

func TestSampleGreedyAndFiltered(t *testing.T) { onEveryBackend(t, testSampleGreedyAndFiltered) }

func testSampleGreedyAndFiltered(t *testing.T, on Backend) {
	m := arrays(t, on)
	logits := Logits{Data: Put(m, []float32{0, 3, 1, 0, 3, 1}).Pointer(), DType: Float32, Rows: 2, Vocab: 3, Stride: 3}
	token, logp := make([]int32, 2), make([]float32, 2)
	rows := []Sampling{{}, {Temperature: 1, TopK: 1, Key: [2]uint32{1, 2}, Position: 1 << 40}}
	a, b := Put(m, token), Put(m, logp)
	if err := Sample(on, logits, rows, a.Pointer(), b.Pointer()); err != nil {
		t.Fatal(err)
	}
	download(t, a, b)
	want := -math.Log(1 + math.Exp(-3) + math.Exp(-2))
	for r := range rows {
		if token[r] != 1 {
			t.Errorf("row %d: token %d, want 1", r, token[r])
		}
		golden.Near(t, "logp", float64(logp[r]), want, 1e-6)
	}
}

func TestSampleRefusals(t *testing.T) { onEveryBackend(t, testSampleRefusals) }

func testSampleRefusals(t *testing.T, on Backend) {
	m := arrays(t, on)
	logits := Logits{Data: Put(m, []float32{0, 0, float32(math.NaN()), 0}).Pointer(), DType: Float32, Rows: 2, Vocab: 2, Stride: 2}
	token := make([]int32, 2)
	tokens := Put(m, token)
	err := Sample(on, logits, []Sampling{{Temperature: 1}, {Temperature: 1}}, tokens.Pointer(), nil)
	download(t, tokens)
	var refused *Error
	if !errors.As(err, &refused) || *refused != (Error{Op: "sample", Status: NonFinite, Row: 1}) || token[1] != -1 {
		t.Errorf("got %v, tokens %v", err, token)
	}
	err = Sample(on, logits, []Sampling{{}, {TopP: 2}}, tokens.Pointer(), nil)
	if !errors.As(err, &refused) || refused.Status != InvalidArgument || refused.Row != 1 {
		t.Errorf("top_p 2: got %v", err)
	}
	if Sample(on, logits, nil, tokens.Pointer(), nil) == nil {
		t.Error("no settings: no error")
	}
}
