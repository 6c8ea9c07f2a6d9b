package torch

import (
	"strings"
	"testing"
)

// With one key and one value of size 1 the rule is simple arithmetic. q and k become their
// signs. With b = 0 and a large negative a, the state moves half of the way to v.
func TestDeltaRule(t *testing.T) {
	do(t, open(t), func(s *Scope) {
		rule := DeltaRule{KeyHeads: 1, ValueHeads: 1, KeyDim: 1, ValueDim: 1, ALog: s.FromFloat32([]float32{0}, 1), DtBias: s.FromFloat32([]float32{-90}, 1)}
		x, ba := s.FromFloat32([]float32{2, 3, 8, 5, -4, 8, 1, 1, 6}, 3, 3), s.FromFloat32(make([]float32, 6), 3, 2)
		want := []float64{4, -2, 6 * 0.5} // S is 4, then moves half of the way from 4 to -8, to -2; q is 1; row 2 is another sequence
		cu, slot, pos := s.FromInt32([]int32{0, 2, 3}, 3), s.FromInt32([]int32{1, 1, 0}, 3), s.FromInt32([]int32{0, 1, 0}, 3)
		for _, dtype := range []DType{Float32, BFloat16} {
			got := rule.Packed(x.To(dtype), ba.To(dtype), PiecesOf(cu, nil))
			if got.DType() != dtype {
				t.Errorf("%v gives %v", dtype, got.DType())
			}
			wantClose(t, dtype.String(), float64s(got), want, 1e-4)
			if advanced := rule.Advance(x.To(dtype), ba.To(dtype), s.Zeros(Float32, 2, 1, 1, 1), slot, pos); !advanced.Equal(got) {
				t.Errorf("%v: %v with states, but %v packed", dtype, float64s(advanced), float64s(got))
			}
		}
	})
}

func TestDeltaRuleRefusals(t *testing.T) {
	do(t, open(t), func(s *Scope) {
		rule := DeltaRule{KeyHeads: 1, ValueHeads: 2, KeyDim: 4, ValueDim: 4, ALog: s.Zeros(Float32, 2), DtBias: s.Zeros(Float32, 2)}
		x, ba, states := s.Zeros(Float32, 3, 16), s.Zeros(Float32, 3, 4), s.Zeros(Float32, 2, 2, 4, 4)
		pieces, rows := PiecesOf(s.FromInt32([]int32{0, 3}, 2), nil), s.FromInt32([]int32{0, 0, 1}, 3)
		for _, c := range []struct {
			want string
			call func()
		}{
			{"x must be [T, 16]", func() { rule.Packed(s.Zeros(Float32, 3, 15), ba, pieces) }},
			{"ba [T, 4]", func() { rule.Packed(x, s.Zeros(Float32, 3, 2), pieces) }},
			{"the pieces have 3 rows, x has 4", func() { rule.Packed(s.Zeros(Float32, 4, 16), s.Zeros(Float32, 4, 4), pieces) }},
			{"a_log and dt_bias", func() {
				other := rule
				other.ALog = s.Zeros(BFloat16, 2)
				other.Packed(x, ba, pieces)
			}},
			{"states must be float32 [slots, 2, 4, 4]", func() { rule.Advance(x, ba, s.Zeros(BFloat16, 2, 2, 4, 4), rows, rows) }},
			{"every slot among the states", func() { rule.Advance(x, ba, states, s.FromInt32([]int32{0, 2, 2}, 3), rows) }},
			{"rise and follow earlier rows", func() { PiecesOf(s.FromInt32([]int32{0, 2, 1}, 3), nil) }},
			{"rise and follow earlier rows", func() { PiecesOf(s.FromInt32([]int32{0, 2, 3}, 3), s.FromInt32([]int32{-1, 2}, 2)) }},
		} {
			func() {
				defer func() {
					if err, _ := recover().(error); err == nil || !strings.Contains(err.Error(), c.want) {
						t.Errorf("%v, want %q", err, c.want)
					}
				}()
				c.call()
			}()
		}
	})
}
