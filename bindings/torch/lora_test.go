package torch

import "testing"

// Two modules of a map to 4 columns: the first has rank 2 and columns 0 and 1, the second has rank 1 and columns 2 and 3.
var loraParts = []LoRAPart{{From: 0, N: 2, R: 2, Scale: 0.5}, {From: 2, N: 2, R: 1, Scale: -1.5}}

// loraOracle computes x w^T plus the adapter's B(A x). values are A [3, k], then B [2, 2] and B [2, 1].
func loraOracle(x, w, values []float64, k, n int) []float64 {
	y := linearOracle(x, w, nil, k)
	a, b := values[:3*k], values[3*k:]
	u := linearOracle(x, a, nil, k)
	for t := range len(x) / k {
		for j := range 2 {
			y[t*n+j] += 0.5 * (b[2*j]*u[3*t] + b[2*j+1]*u[3*t+1])
			y[t*n+2+j] += -1.5 * b[4+j] * u[3*t+2]
		}
	}
	return y
}

// Rows with different adapters, including an empty one, have the same bits as alone.
func TestLoRARowsOfSeveralAdapters(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		const rows, k, n = 9, 6, 4
		which := []int32{1, 0, -1, 1, 1, 0, 2, 0, 1}
		do(t, d, func(s *Scope) {
			x, y := from(s, values(1, rows*k), Float32, rows, k), from(s, values(2, rows*n), Float32, rows, n)
			all := []LoRA{{from(s, values(3, 24), Float32, 24), loraParts}, {from(s, values(4, 8), Float32, 8), []LoRAPart{{From: 1, N: 2, R: 1, Scale: 2}}}, {}}
			before := float64s(y)
			alone := make([][]float64, len(all))
			for i := range all {
				copied := from(s, before, Float32, rows, n)
				alone[i] = float64s(LoRAAdd_(copied, x, all[i:i+1], nil))
			}
			got := float64s(LoRAAdd_(y, x, all, s.FromInt32(which, rows)))
			for r, a := range which {
				want := before
				if a >= 0 {
					want = alone[a]
				}
				for j := range n {
					if got[r*n+j] != want[r*n+j] {
						t.Errorf("row %d of adapter %d: %v, want %v", r, a, got[r*n:][:n], want[r*n:][:n])
						break
					}
				}
			}
		})
	})
}

func TestLoRARefusals(t *testing.T) {
	d := open(t)
	for name, f := range map[string]func(s *Scope){
		"values": func(s *Scope) {
			LoRAAdd_(s.Zeros(Float32, 2, 4), s.Zeros(Float32, 2, 6), []LoRA{{s.Zeros(Float32, 23), loraParts}}, nil)
		},
		"columns": func(s *Scope) {
			LoRAAdd_(s.Zeros(Float32, 2, 3), s.Zeros(Float32, 2, 6), []LoRA{{s.Zeros(Float32, 24), loraParts}}, nil)
		},
		"one T": func(s *Scope) {
			LoRAAdd_(s.Zeros(Float32, 3, 4), s.Zeros(Float32, 2, 6), []LoRA{{s.Zeros(Float32, 24), loraParts}}, nil)
		},
		"which": func(s *Scope) {
			LoRAAdd_(s.Zeros(Float32, 2, 4), s.Zeros(Float32, 2, 6), nil, s.FromInt32([]int32{0}, 1))
		},
		"invalid ": func(s *Scope) {
			LoRAAdd_(s.Zeros(Float32, 1, 4), s.Zeros(Float32, 1, 6), []LoRA{{s.Zeros(Float32, 24), loraParts}}, s.FromInt32([]int32{1}, 1))
		},
	} {
		if err := d.Do(t.Context(), func(s *Scope) error { f(s); return nil }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
