package model

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/weights"
)

// rotaryTables are cos and sin of position × inverse frequency, [positions, HeadDim/2] row-major,
// computed in float64 and rounded once (Su et al. 2021; half-split layout as in Llama).
func rotaryTables(cfg *weights.Config, positions int) (cos, sin []float32) {
	freqs := inverseFrequencies(cfg)
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

// inverseFrequencies are theta^(-2i/HeadDim), stretched band by band where the config asks for the "llama3" scaling.
func inverseFrequencies(cfg *weights.Config) []float64 {
	freqs := make([]float64, cfg.HeadDim/2)
	for i := range freqs {
		freqs[i] = math.Pow(cfg.RopeTheta, -2*float64(i)/float64(cfg.HeadDim))
		if r := cfg.RopeScaling; r != nil {
			freqs[i] *= r.InvFreqScale(freqs[i])
		}
	}
	return freqs
}
