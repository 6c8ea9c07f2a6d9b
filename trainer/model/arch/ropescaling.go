package arch

import (
	"cmp"
	"fmt"
	"math"
)

// RopeScaling changes the frequencies of a rotary embedding for contexts that are longer than those of pretraining:
// *[RopeLinear], *[RopeDynamic], *[RopeAlpha], *[RopeLlama3], *[RopeYaRN], *[RopeLong] or *[RopeProportional].
type RopeScaling interface {
	rescale(freqs []float64, r Rotary)
	amplitude() float64
	identity() bool // frequencies and amplitude do not change
	validate() error
	json() map[string]any // rope_scaling in config.json
}

// ropeScalings maps each rope_type to a function that reads its parameters.
var ropeScalings = map[string]func(k *keys, c *Config) RopeScaling{
	"linear": func(k *keys, _ *Config) RopeScaling {
		r := &RopeLinear{}
		k.require("factor")
		k.float("factor", &r.Factor)
		return r
	},
	"dynamic": func(k *keys, _ *Config) RopeScaling {
		r := &RopeDynamic{}
		k.require("factor")
		k.float("factor", &r.Factor)
		return r
	},
	"llama3": func(k *keys, c *Config) RopeScaling {
		r := &RopeLlama3{OriginalMaxPosition: c.MaxPosition}
		k.require("factor", "low_freq_factor", "high_freq_factor")
		k.float("factor", &r.Factor)
		k.float("low_freq_factor", &r.LowFreqFactor)
		k.float("high_freq_factor", &r.HighFreqFactor)
		k.integer(originalPositions, &r.OriginalMaxPosition)
		return r
	},
	"yarn": func(k *keys, c *Config) RopeScaling { return readYaRN(k, c) },
}

// RopeLinear divides all positions by Factor.
type RopeLinear struct{ Factor float64 }

func (r *RopeLinear) rescale(freqs []float64, _ Rotary) {
	for i := range freqs {
		freqs[i] /= r.Factor
	}
}

func (r *RopeLinear) amplitude() float64 { return 1 }
func (r *RopeLinear) identity() bool     { return r.Factor == 1 }
func (r *RopeLinear) validate() error    { return positive("factor", r.Factor) }
func (r *RopeLinear) json() map[string]any {
	return map[string]any{"rope_type": "linear", "factor": decimal(r.Factor)}
}

// RopeDynamic changes nothing up to MaxPosition positions, which are the most that models read here. transformers uses
// Factor to rescale longer sequences by their length.
type RopeDynamic struct{ Factor float64 }

func (r *RopeDynamic) rescale([]float64, Rotary) {}
func (r *RopeDynamic) amplitude() float64        { return 1 }
func (r *RopeDynamic) identity() bool            { return r.Factor == 1 }
func (r *RopeDynamic) validate() error           { return positive("factor", r.Factor) }
func (r *RopeDynamic) json() map[string]any {
	return map[string]any{"rope_type": "dynamic", "factor": decimal(r.Factor)}
}

// RopeLlama3 rescales frequencies as Llama 3.1 does. Wavelengths above OriginalMaxPosition/LowFreqFactor are stretched by
// Factor, wavelengths below OriginalMaxPosition/HighFreqFactor do not change, and wavelengths between them are
// interpolated.
type RopeLlama3 struct {
	Factor              float64
	LowFreqFactor       float64
	HighFreqFactor      float64
	OriginalMaxPosition int
}

func (r *RopeLlama3) rescale(freqs []float64, _ Rotary) {
	for i, f := range freqs {
		freqs[i] = f * r.scale(f)
	}
}

// scale returns the factor of the inverse frequency f (radians per position).
func (r *RopeLlama3) scale(f float64) float64 {
	wavelength, original := 2*math.Pi/f, float64(r.OriginalMaxPosition)
	switch {
	case wavelength > original/r.LowFreqFactor:
		return 1 / r.Factor
	case wavelength < original/r.HighFreqFactor:
		return 1
	}
	smooth := (original/wavelength - r.LowFreqFactor) / (r.HighFreqFactor - r.LowFreqFactor)
	return (1-smooth)/r.Factor + smooth
}

func (r *RopeLlama3) amplitude() float64 { return 1 }
func (r *RopeLlama3) identity() bool     { return r.Factor == 1 }

func (r *RopeLlama3) validate() error {
	err := cmp.Or(positive("factor", r.Factor), positive("low_freq_factor", r.LowFreqFactor), positive("high_freq_factor", r.HighFreqFactor))
	if err == nil && r.HighFreqFactor <= r.LowFreqFactor {
		err = fmt.Errorf("rope_scaling: high_freq_factor %g must be above low_freq_factor %g", r.HighFreqFactor, r.LowFreqFactor)
	}
	return cmp.Or(err, validOriginal(r.OriginalMaxPosition))
}

func (r *RopeLlama3) json() map[string]any {
	return map[string]any{"rope_type": "llama3", "factor": decimal(r.Factor), "low_freq_factor": decimal(r.LowFreqFactor),
		"high_freq_factor": decimal(r.HighFreqFactor), originalPositions: r.OriginalMaxPosition}
}

// RopeYaRN is YaRN (Peng et al. 2023). Planes that rotate more than BetaFast times over OriginalMaxPosition
// positions do not change. Planes that rotate less than BetaSlow times are slowed down by Factor. Planes
// between them are interpolated by their index. Cosines and sines are multiplied by AttentionFactor.
type RopeYaRN struct {
	Factor              float64
	BetaFast, BetaSlow  float64
	AttentionFactor     float64
	Truncate            bool // the bounds of the interpolation are whole indices
	OriginalMaxPosition int
}

func readYaRN(k *keys, c *Config) *RopeYaRN {
	r := &RopeYaRN{Truncate: true, OriginalMaxPosition: c.MaxPosition}
	k.integer(originalPositions, &r.OriginalMaxPosition)
	k.require("factor")
	if k.null("factor") && r.OriginalMaxPosition > 0 {
		r.Factor = float64(c.MaxPosition) / float64(r.OriginalMaxPosition)
	}
	k.floatOrNull("factor", &r.Factor)
	k.floatOrNull("beta_fast", &r.BetaFast)
	k.floatOrNull("beta_slow", &r.BetaSlow)
	r.BetaFast, r.BetaSlow = cmp.Or(r.BetaFast, 32), cmp.Or(r.BetaSlow, 1)
	k.boolean("truncate", &r.Truncate)
	var all, one float64
	k.floatOrNull("mscale", &one)
	k.floatOrNull("mscale_all_dim", &all)
	r.AttentionFactor = yarnScale(r.Factor, 1)
	if one != 0 && all != 0 {
		r.AttentionFactor = yarnScale(r.Factor, one) / yarnScale(r.Factor, all)
	}
	k.floatOrNull("attention_factor", &r.AttentionFactor)
	return r
}

// yarnNote returns a sentence about a key of config.json on which engines differ, or "". transformers and this package ignore
// rope_scaling.attn_factor, and vLLM multiplies the cosines and sines by it.
func yarnNote(c Config, k *keys) string {
	r, ok := c.Rope.Scaling.(*RopeYaRN)
	if !ok {
		return ""
	}
	for _, name := range []string{"rope_scaling", "rope_parameters"} {
		factor := 1.0
		if in := k.section(name); in != nil && !in.has("attention_factor") {
			in.floatOrNull("attn_factor", &factor)
		}
		if factor != 1 {
			return fmt.Sprintf("%s.attn_factor %g is ignored, as transformers does: cosines and sines are multiplied by %.6g. vLLM multiplies them "+
				"by %.6g: write this number as attention_factor if the model was trained so", name, factor, r.AttentionFactor, r.AttentionFactor*factor)
		}
	}
	return ""
}

// yarnScale returns the temperature that the paper gives for a factor; weight multiplies its logarithm.
func yarnScale(factor, weight float64) float64 {
	if !(factor > 1) {
		return 1
	}
	return 0.1*weight*math.Log(factor) + 1
}

func (r *RopeYaRN) rescale(freqs []float64, rotary Rotary) {
	low, high := r.index(r.BetaFast, rotary), r.index(r.BetaSlow, rotary)
	if r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(rotary.Dim-1))
	if low == high {
		high += 0.001
	}
	for i, f := range freqs {
		slowed := min(max((float64(i)-low)/(high-low), 0), 1)
		freqs[i] = f/r.Factor*slowed + f*(1-slowed)
	}
}

// index returns the index, as a real number, of the plane that rotates `turns` times over OriginalMaxPosition positions.
func (r *RopeYaRN) index(turns float64, rotary Rotary) float64 {
	return float64(rotary.Dim) * math.Log(float64(r.OriginalMaxPosition)/(turns*2*math.Pi)) / (2 * math.Log(rotary.Theta))
}

func (r *RopeYaRN) amplitude() float64 { return r.AttentionFactor }
func (r *RopeYaRN) identity() bool     { return r.Factor == 1 && r.AttentionFactor == 1 }

func (r *RopeYaRN) validate() error {
	return cmp.Or(positive("factor", r.Factor), positive("beta_fast", r.BetaFast), positive("beta_slow", r.BetaSlow),
		positive("attention_factor", r.AttentionFactor), validOriginal(r.OriginalMaxPosition))
}

func (r *RopeYaRN) json() map[string]any {
	return map[string]any{"rope_type": "yarn", "factor": decimal(r.Factor), "beta_fast": decimal(r.BetaFast), "beta_slow": decimal(r.BetaSlow),
		"attention_factor": decimal(r.AttentionFactor), "truncate": r.Truncate, originalPositions: r.OriginalMaxPosition}
}

func positive(key string, value float64) error {
	if !positiveFinite(value) {
		return fmt.Errorf("rope_scaling.%s is %g: must be positive and finite", key, value)
	}
	return nil
}

func validOriginal(positions int) error {
	if positions < 1 || positions > maxPosition {
		return fmt.Errorf("rope_scaling.original_max_position_embeddings is %d: must be 1 to %d", positions, maxPosition)
	}
	return nil
}
