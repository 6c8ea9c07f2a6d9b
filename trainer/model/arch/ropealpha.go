package arch

import "math"

// RopeAlpha is NTK-aware scaling by a fixed factor: theta is multiplied by Alpha^(Dim/(Dim-2)) for sequences of every length (HunYuan's
// rope_type dynamic).
type RopeAlpha struct{ Alpha float64 }

func readRopeAlpha(k *keys, _ *Config) RopeScaling {
	r := &RopeAlpha{}
	k.float("alpha", &r.Alpha)
	return r
}

func (r *RopeAlpha) rescale(freqs []float64, rotary Rotary) {
	for i := 1; i < len(freqs); i++ { // the first stays; if Dim is 2, there are no others
		freqs[i] *= math.Pow(r.Alpha, -2*float64(i)/float64(rotary.Dim-2))
	}
}

// withoutAlpha returns the positions with Alpha folded into theta, as GGUF files store it.
func (r Rope) withoutAlpha(headDim int) Rope {
	if scaling, stretched := r.Scaling.(*RopeAlpha); stretched {
		dim := float64(headDim)
		r.Theta *= math.Pow(scaling.Alpha, dim/(dim-2))
		r.Scaling = nil
	}
	return r
}

func (r *RopeAlpha) amplitude() float64 { return 1 }
func (r *RopeAlpha) identity() bool     { return r.Alpha == 1 || r.Alpha == 0 } // transformers ignores 0
func (r *RopeAlpha) validate() error    { return positive("alpha", r.Alpha) }
func (r *RopeAlpha) json() map[string]any {
	return map[string]any{"rope_type": "dynamic", "alpha": decimal(r.Alpha), "factor": decimal(1)}
}
