package local

import (
	"math"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// TestNonFiniteLogits: if the weights are not finite, a request fails with the reason, and no token is sampled.
func TestNonFiniteLogits(t *testing.T) {
	m := testModel(t, 1)
	if err := m.Device.Do(t.Context(), func(*torch.Scope) error { m.Master.Tensor.Fill_(math.NaN()); return nil }); err != nil {
		t.Fatal(err)
	}
	e := testEngine(t, m, Options{Slots: 1})
	out, err := e.Generate(t.Context(), policy.Request{Tokens: []int32{1, 2}, Sampling: policy.Sampling{Temperature: 1, MaxNew: 4}})
	if err == nil || !strings.Contains(err.Error(), "non-finite") || len(out.Tokens) > 0 {
		t.Errorf("%v, %v", out.Tokens, err)
	}
}
