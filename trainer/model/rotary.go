package model

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/arch"
)

// rotaryTables are cos and sin of position × inverse frequency, [positions, HeadDim/2] row-major,
// computed in float64 and rounded once (Su et al. 2021; half-split layout as in Llama).
func rotaryTables(cfg *arch.Config, positions int) (cos, sin []float32) {
	freqs := cfg.InverseFrequencies()
	cos = make([]float32, positions*len(freqs))
	sin = make([]float32, positions*len(freqs))
	for p := range positions {
		for i, f := range freqs {
			s, c := math.Sincos(float64(p) * f)
			cos[p*len(freqs)+i], sin[p*len(freqs)+i] = float32(c), float32(s)
		}
	}
	return cos, sin
}
