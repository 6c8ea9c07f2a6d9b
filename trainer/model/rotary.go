package model

import (
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// rotation holds the tables of a rotary embedding, fp32 [positions, planes]; nil in a layer without one.
type rotation struct{ cos, sin *torch.Tensor }

// rotationsOf returns the tables of all layers. They are kept in the scope.
func rotationsOf(s *torch.Scope, cfg *arch.Config, positions int) map[arch.Rotary]rotation {
	all := map[arch.Rotary]rotation{}
	for i := range cfg.Layers {
		rotary, ok := cfg.Layer(i).Rotary()
		if _, made := all[rotary]; !ok || made {
			continue
		}
		cos, sin := rotaryTables(rotary, positions)
		shape := []int64{int64(positions), int64(rotary.Dim / 2)}
		all[rotary] = rotation{s.Keep(s.FromFloat32(cos, shape...)), s.Keep(s.FromFloat32(sin, shape...))}
	}
	return all
}

// rotaryTables returns cos and sin of position × frequency, [positions, planes] row-major, computed in float64 and rounded
// once (Su et al. 2021; half-split layout as in Llama).
func rotaryTables(r arch.Rotary, positions int) (cos, sin []float32) {
	freqs, amplitude := r.Frequencies(), r.Amplitude()
	cos = make([]float32, positions*len(freqs))
	sin = make([]float32, positions*len(freqs))
	for p := range positions {
		for i, f := range freqs {
			s, c := math.Sincos(float64(p) * f)
			cos[p*len(freqs)+i], sin[p*len(freqs)+i] = float32(c*amplitude), float32(s*amplitude)
		}
	}
	return cos, sin
}

// growthOf returns the factors of queries by position, fp32 [positions], or nil if all are 1. The tensor is kept in the
// scope.
func growthOf(s *torch.Scope, cfg *arch.Config, positions int) *torch.Tensor {
	if cfg.Queries.Growth == (arch.QueryGrowth{}) {
		return nil
	}
	growth := make([]float32, positions)
	for p := range growth {
		growth[p] = float32(cfg.Queries.Growth.At(p))
	}
	return s.Keep(s.FromFloat32(growth, int64(positions)))
}
