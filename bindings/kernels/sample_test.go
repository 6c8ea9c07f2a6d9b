package kernels

import (
	"github.com/mgrpo/mgrpo/trainer/golden"

	"errors"
	"math"
	"testing"
)

func TestSampleGreedyAndFiltered(t *testing.T) {
	z := []float32{0, 3, 1, 0, 3, 1}
	logits := Logits{Data: Pointer(z), DType: Float32, Rows: 2, Vocab: 3, Stride: 3}
	token, logp, truncated := make([]int32, 2), make([]float32, 2), make([]float32, 2)
	rows := []Sampling{{}, {Temperature: 1, TopK: 1, Key: [2]uint32{1, 2}, Position: 1 << 40}}
	if err := Sample(CPU, logits, rows, Pointer(token), Pointer(logp), Pointer(truncated)); err != nil {
		t.Fatal(err)
	}
	want := -math.Log(1 + math.Exp(-3) + math.Exp(-2))
	for r := range rows {
		if token[r] != 1 {
			t.Errorf("row %d: token %d, want 1", r, token[r])
		}
		golden.Near(t, "logp", float64(logp[r]), want, 1e-6)
	}
	golden.Near(t, "truncated", float64(truncated[1]), 0, 1e-7)
}

func TestSampleRefusals(t *testing.T) {
	z := []float32{0, 0, float32(math.NaN()), 0}
	logits := Logits{Data: Pointer(z), DType: Float32, Rows: 2, Vocab: 2, Stride: 2}
	token := make([]int32, 2)
	err := Sample(CPU, logits, []Sampling{{Temperature: 1}, {Temperature: 1}}, Pointer(token), nil, nil)
	var refused *Error
	if !errors.As(err, &refused) || *refused != (Error{Op: "sample", Status: NonFinite, Row: 1}) || token[1] != -1 {
		t.Errorf("got %v, tokens %v", err, token)
	}
	err = Sample(CPU, logits, []Sampling{{}, {TopP: 2}}, Pointer(token), nil, nil)
	if !errors.As(err, &refused) || refused.Status != InvalidArgument || refused.Row != 1 {
		t.Errorf("top_p 2: got %v", err)
	}
	if Sample(CPU, logits, nil, Pointer(token), nil, nil) == nil {
		t.Error("no settings: no error")
	}
}
