package arch

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/strictjson"
)

// RopeLlama3 rescales RoPE frequencies as Llama 3.1 does: wavelengths above
// OriginalMaxPosition/LowFreqFactor are stretched by Factor, those below OriginalMaxPosition/HighFreqFactor stay, and
// those between are interpolated.
type RopeLlama3 struct {
	Factor              float64
	LowFreqFactor       float64
	HighFreqFactor      float64
	OriginalMaxPosition int
}

// InverseFrequencies are RoPE's angles per position, in radians: theta^(-2i/HeadDim) for i below HeadDim/2 (Su et al.
// 2021), rescaled with RopeScaling.
func (c Config) InverseFrequencies() []float64 {
	freqs := make([]float64, c.HeadDim/2)
	for i := range freqs {
		freqs[i] = math.Pow(c.RopeTheta, -2*float64(i)/float64(c.HeadDim))
		if r := c.RopeScaling; r != nil {
			freqs[i] *= r.scale(freqs[i])
		}
	}
	return freqs
}

// scale is the factor of the inverse frequency f (radians per position).
func (r RopeLlama3) scale(f float64) float64 {
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

func (r RopeLlama3) validate() error {
	for _, f := range []struct {
		key   string
		value float64
	}{{"factor", r.Factor}, {"low_freq_factor", r.LowFreqFactor}, {"high_freq_factor", r.HighFreqFactor}} {
		if !(f.value > 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("rope_scaling.%s is %g: must be positive and finite", f.key, f.value)
		}
	}
	if r.HighFreqFactor <= r.LowFreqFactor {
		return fmt.Errorf("rope_scaling: high_freq_factor %g must be above low_freq_factor %g", r.HighFreqFactor, r.LowFreqFactor)
	}
	if r.OriginalMaxPosition < 1 || r.OriginalMaxPosition > maxPosition {
		return fmt.Errorf("rope_scaling.original_max_position_embeddings is %d: must be 1 to %d", r.OriginalMaxPosition, maxPosition)
	}
	return nil
}

// rope reads rope_theta and rope_scaling, or rope_parameters, which has both.
func (k *keys) rope(c *Config) {
	c.RopeTheta = 10000
	if !k.null("rope_theta") {
		k.float("rope_theta", &c.RopeTheta)
	}
	section := "rope_scaling"
	if k.values[section] == nil {
		section = "rope_parameters"
	}
	if k.values[section] == nil {
		return
	}
	object, ok := k.values[section].(map[string]any)
	if !ok {
		k.fail("%s is not an object", section)
		return
	}
	in := &keys{values: object, prefix: section + "."}
	kind := "default"
	in.text("type", &kind)
	in.text("rope_type", &kind)
	in.float("rope_theta", &c.RopeTheta)
	switch kind {
	case "default":
		if _, perLayer := object["full_attention"]; perLayer {
			in.fail("full_attention: parameters by layer type are not supported")
		}
	case "llama3":
		r := &RopeLlama3{}
		in.require("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
		in.float("factor", &r.Factor)
		in.float("low_freq_factor", &r.LowFreqFactor)
		in.float("high_freq_factor", &r.HighFreqFactor)
		in.integer("original_max_position_embeddings", &r.OriginalMaxPosition)
		c.RopeScaling = r
	default:
		in.fail("rope_type %q is not supported: only default and llama3", strictjson.Brief(kind))
	}
	if k.err == nil {
		k.err = in.err
	}
}

// json is the value of rope_scaling in a config.json.
func (r *RopeLlama3) json() any {
	if r == nil {
		return nil
	}
	return map[string]any{"rope_type": "llama3", "factor": decimal(r.Factor), "low_freq_factor": decimal(r.LowFreqFactor),
		"high_freq_factor": decimal(r.HighFreqFactor), "original_max_position_embeddings": r.OriginalMaxPosition}
}
