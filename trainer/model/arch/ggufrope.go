package arch

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// ropeGGUF reads the keys that begin with "rope." as llama.cpp does. The type of scaling is linear unless it is named, the
// factor may have its older name, and 0 stands for 1. Keys that are not read are refused unless they have a value that
// changes nothing.
func ropeGGUF(k *keys, c *Config) {
	in, f := k.under("rope."), families[c.Family]
	kind, factor, attention := "linear", 1.0, 1.0
	original := c.MaxPosition
	in.text("scaling.type", &kind)
	in.float("scale_linear", &factor)
	in.float("scaling.factor", &factor)
	in.float("scaling.attn_factor", &attention)
	in.integer("scaling.original_context_length", &original)
	read := []string{"freq_base", "scaling.type", "scale_linear", "scaling.factor", "scaling.attn_factor", "scaling.original_context_length"}
	if f.defaults.Rope.LocalTheta != 0 {
		in.float("freq_base_swa", &c.Rope.LocalTheta)
		read = append(read, "freq_base_swa")
	}
	if f.partialRotary != 0 {
		turning := c.HeadDim
		if in.integer("dimension_count", &turning); turning != c.HeadDim {
			c.Rope.Dim = turning
		}
		read = append(read, "dimension_count")
	}
	if f.has.gatedDelta {
		read = append(read, "dimension_sections") // see refuseSectionsGGUF
	}
	yarn := RopeYaRN{BetaFast: 32, BetaSlow: 1}
	all := 0.0 // mscale_all_dim; mscale is 1
	if f.has.queryGrowth {
		in.float("scaling.yarn_log_multiplier", &all)
		in.float("scaling.yarn_beta_fast", &yarn.BetaFast)
		in.float("scaling.yarn_beta_slow", &yarn.BetaSlow)
		read = append(read, "scaling.yarn_log_multiplier", "scaling.yarn_beta_fast", "scaling.yarn_beta_slow")
	}
	ofWindows, window := c.HeadDim, 0
	k.integer("attention.key_length_swa", &ofWindows)
	if k.integer("attention.sliding_window", &window); window == 0 {
		read = append(read, "freq_base_swa", "dimension_count_swa") // no layer depends on them
	}
	refuseRopeGGUF(in, read, ofWindows, *c)
	if factor == 0 {
		factor = 1
	}
	switch kind {
	case "none":
	case "linear":
		c.Rope.Scaling = &RopeLinear{Factor: factor}
	case "yarn":
		yarn.Factor, yarn.Truncate, yarn.OriginalMaxPosition = factor, true, original
		yarn.AttentionFactor = yarnScale(factor, 1) / yarnScale(factor, all) * attention
		c.Rope.Scaling, attention = &yarn, 1
	default:
		in.fail("scaling.type %q is not supported: use none, linear or yarn", strictjson.Brief(kind))
	}
	if attention != 1 {
		in.fail("scaling.attn_factor %g is not supported with scaling.type %s", attention, kind)
	}
	if c.Rope.Scaling != nil && c.Rope.Scaling.identity() {
		c.Rope.Scaling = nil
	}
	k.fold(in)
}

// refuseRopeGGUF refuses every key that is not in read. Keys are accepted if their value changes nothing: converters write such keys.
// windowDim is the dimension of heads in layers with a window.
func refuseRopeGGUF(k *keys, read []string, windowDim int, c Config) {
	same := map[string][]float64{
		"dimension_count": {float64(c.HeadDim)}, "dimension_count_swa": {float64(windowDim)}, "freq_base_swa": {c.Rope.Theta},
		"scaling.alpha": {0}, "scaling.yarn_log_multiplier": {0}, "scaling.yarn_ext_factor": {-1},
		"scaling.yarn_beta_fast": {32, -1}, "scaling.yarn_beta_slow": {1, -1},
	}
	for _, key := range slices.Sorted(maps.Keys(k.values)) {
		if slices.Contains(read, key) || key == "scaling.finetuned" { // no forward pass depends on "finetuned"
			continue
		}
		value := math.NaN()
		switch v := k.values[key].(type) {
		case int64:
			value = float64(v)
		case uint64:
			value = float64(v)
		case float64:
			value = v
		}
		// llama.cpp's converter writes attention_factor as yarn_attn_factor, which llama.cpp reads for Grok only.
		unread := key == "scaling.yarn_attn_factor" && positiveFinite(value)
		// llama.cpp saves sections of zeros for models without sections.
		sections, isList := k.values[key].([]int64)
		unread = unread || key == "dimension_sections" && isList && !slices.ContainsFunc(sections, func(size int64) bool { return size != 0 })
		if !unread && !slices.Contains(same[key], value) {
			k.fail("%s %s is not supported", key, shown(k.values[key]))
		}
	}
}

// ropeFactors derives the rope scaling of Llama 3.1 from the divisors that GGUF stores instead. Only the factor and the
// original length vary between published models; every divisor is compared with the resulting scaling.
func (f *family) ropeFactors(factors []float32, c *Config) error {
	if f.gguf.fraction {
		return c.Rope.readFraction(factors, cmp.Or(c.ByLayer.orZero().GlobalHeadDim, c.HeadDim)/2)
	}
	if !f.gguf.ropeFactors || len(factors) != c.HeadDim/2 {
		return fmt.Errorf("%d values: expected %d frequency factors of a llama model", len(factors), c.HeadDim/2)
	}
	if !slices.ContainsFunc(factors, func(f float32) bool { return f != 1 }) {
		return nil
	}
	if c.Rope.Scaling != nil {
		return fmt.Errorf("frequency factors together with rope.scaling are not supported")
	}
	frequencies := (Rotary{Theta: c.Rope.Theta, Dim: c.HeadDim}).Frequencies()
	scaling := &RopeLlama3{Factor: float64(slices.Max(factors)), LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPosition: 8192}
	if scaling.firstMismatch(factors, frequencies) >= 0 {
		scaling.OriginalMaxPosition = scaling.originalOf(factors, frequencies)
	}
	if i := scaling.firstMismatch(factors, frequencies); i >= 0 {
		want := 1 / scaling.scale(frequencies[i])
		return fmt.Errorf("factor %d is %g, but llama3 scaling over %d positions has %g; other scalings are not supported", i, factors[i],
			scaling.OriginalMaxPosition, want)
	}
	c.Rope.Scaling = scaling
	return nil
}

// firstMismatch returns the index of the first divisor that differs from the divisors of this scaling, or -1.
func (r *RopeLlama3) firstMismatch(factors []float32, frequencies []float64) int {
	for i, frequency := range frequencies {
		if want := 1 / r.scale(frequency); !(math.Abs(float64(factors[i])-want) <= 1e-4*want) {
			return i
		}
	}
	return -1
}

// originalOf returns the original length of a scaling that has these divisors. If no divisor is interpolated, it is a power of two between
// the lengths that the neighbouring divisors allow.
func (r *RopeLlama3) originalOf(factors []float32, frequencies []float64) int {
	least := 0.0
	for i, f := range factors {
		turns := frequencies[i] / (2 * math.Pi) // for each position
		switch {
		case f == 1:
			least = max(least, r.HighFreqFactor/turns)
		case float64(f) < r.Factor:
			smooth := (1/float64(f) - 1/r.Factor) / (1 - 1/r.Factor)
			return clampedOriginal(math.Round((smooth*(r.HighFreqFactor-r.LowFreqFactor) + r.LowFreqFactor) / turns))
		}
	}
	return clampedOriginal(math.Exp2(math.Ceil(math.Log2(max(least, 1)))))
}

func clampedOriginal(n float64) int { return int(min(max(n, 1), maxPosition)) }

// readFraction derives the share of planes that are rotated from the divisors of layers without a window. A divisor is 1 for such a plane.
// For the other planes it is so large that no position rotates them.
func (r *Rope) readFraction(factors []float32, planes int) error {
	const still = 1e9
	if r.Scaling != nil {
		return fmt.Errorf("frequency factors together with rope.scaling are not supported")
	}
	if len(factors) != planes {
		return fmt.Errorf("%d values: expected %d frequency factors of layers without a window", len(factors), planes)
	}
	turning := 0
	for turning < planes && factors[turning] == 1 {
		turning++
	}
	for i, f := range factors[turning:] {
		if !(f >= still) {
			return fmt.Errorf("factor %d is %g: only 1, and after them values from %g on, are supported", turning+i, f, still)
		}
	}
	if turning == planes {
		return nil
	}
	fraction := float64(turning) / float64(planes)
	for int(fraction*float64(2*planes)/2) < turning {
		fraction = math.Nextafter(fraction, 1)
	}
	r.Scaling = &RopeProportional{Fraction: fraction, Factor: 1}
	return nil
}
