package arch

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/strictjson"
)

// Rotary is the rotary position embedding of a layer (Su et al. 2021). Layers with equal values share their tables.
type Rotary struct {
	Theta   float64
	Dim     int         // even: the first Dim dimensions of a head turn, in Dim/2 planes
	Scaling RopeScaling // nil: none
}

// Rotary returns the embedding of a layer; ok is false for a layer without one.
func (c Config) Rotary(layer int) (r Rotary, ok bool) {
	if c.NoRope != nil && c.NoRope[layer] {
		return Rotary{}, false
	}
	r = Rotary{Theta: c.RopeTheta, Dim: c.HeadDim, Scaling: c.RopeScaling}
	if c.RotaryDim > 0 {
		r.Dim = c.RotaryDim
	}
	if c.LocalTheta > 0 && c.Window(layer) > 0 {
		r.Theta, r.Scaling = c.LocalTheta, nil
	}
	return r, true
}

// RotaryWidth is the number of cosines and sines at each position, in the tables of all layers.
func (c Config) RotaryWidth() (width int64) {
	tables := map[Rotary]bool{}
	for i := range c.Layers {
		if r, ok := c.Rotary(i); ok && !tables[r] {
			tables[r] = true
			width += int64(r.Dim)
		}
	}
	return width
}

// Frequencies are the angles per position of the Dim/2 planes, in radians: Theta^(-2i/Dim), rescaled.
func (r Rotary) Frequencies() []float64 {
	freqs := make([]float64, r.Dim/2)
	for i := range freqs {
		freqs[i] = math.Pow(r.Theta, -2*float64(i)/float64(r.Dim))
	}
	if r.Scaling != nil {
		r.Scaling.rescale(freqs, r)
	}
	return freqs
}

// Amplitude is the factor of cosines and sines, and so of queries and keys.
func (r Rotary) Amplitude() float64 {
	if r.Scaling == nil {
		return 1
	}
	return r.Scaling.amplitude()
}

// rope reads rope_theta and rope_scaling, or rope_parameters, which has both.
func (k *keys) rope(f *family, c *Config) {
	if c.RopeTheta == 0 {
		c.RopeTheta = 10000
	}
	if !k.null("rope_theta") {
		k.float("rope_theta", &c.RopeTheta)
	}
	if f.localTheta {
		k.floatOrNull("rope_local_base_freq", &c.LocalTheta)
		k.ropeByLayerType(f, c)
		return
	}
	section := "rope_scaling"
	if k.values[section] == nil {
		section = "rope_parameters"
	}
	if in := k.section(section); in != nil {
		in.ropeParameters(f, c)
		k.partialRotary(f, in, c)
		k.fold(in)
	} else {
		k.partialRotary(f, &keys{}, c)
	}
}

// section is an object under a key, nil if there is none.
func (k *keys) section(name string) *keys {
	if k.values[name] == nil {
		return nil
	}
	object, ok := k.values[name].(map[string]any)
	if !ok {
		k.fail("%s is not an object", name)
		return nil
	}
	return &keys{values: object, prefix: k.prefix + name + "."}
}

// fold takes over the error of a section.
func (k *keys) fold(section *keys) {
	if k.err == nil {
		k.err = section.err
	}
}

// ropeByLayerType reads rope_parameters with an object for each type of layers, and rope_scaling, which is of the layers
// without a window.
func (k *keys) ropeByLayerType(f *family, c *Config) {
	in := k.section("rope_parameters")
	if in == nil {
		in = &keys{}
	}
	for key := range in.values {
		if key != fullAttention && key != slidingAttention {
			in.fail("%s: only %s and %s are expected here", strictjson.Brief(key), fullAttention, slidingAttention)
		}
	}
	for _, section := range []*keys{in.section(fullAttention), k.section("rope_scaling")} {
		if section != nil {
			section.ropeParameters(f, c)
			in.fold(section)
		}
	}
	if sliding := in.section(slidingAttention); sliding != nil {
		local := Config{RopeTheta: c.LocalTheta}
		sliding.ropeParameters(f, &local)
		if local.RopeScaling != nil {
			sliding.fail("rope_type: layers with a window are supported without scaling only")
		}
		c.LocalTheta = local.RopeTheta
		in.fold(sliding)
	}
	k.fold(in)
}

func (k *keys) ropeParameters(f *family, c *Config) {
	kind := "default"
	k.text("type", &kind)
	k.text("rope_type", &kind)
	k.float("rope_theta", &c.RopeTheta)
	for _, nested := range []string{fullAttention, slidingAttention} {
		if k.has(nested) {
			k.fail("%s: parameters by layer type are not supported in model_type %s", nested, f.name)
		}
	}
	if kind == "default" {
		return
	}
	read, ok := ropeScalings[kind]
	if !ok || f.unscaledRope {
		k.fail("rope_type %q is not supported in model_type %s: use default%s", strictjson.Brief(kind), f.name, map[bool]string{false: ", linear, llama3 or yarn"}[f.unscaledRope])
		return
	}
	c.RopeScaling = read(k, c)
}

// partialRotary reads partial_rotary_factor, which in holds or k.
func (k *keys) partialRotary(f *family, in *keys, c *Config) {
	factor := 1.0
	k.floatOrNull("partial_rotary_factor", &factor)
	in.floatOrNull("partial_rotary_factor", &factor)
	if factor == 1 {
		return
	}
	if !f.partialRotary {
		k.fail("partial_rotary_factor %g is not supported in model_type %s: only 1", factor, f.name)
	}
	dim := float64(c.HeadDim) * factor
	if !(factor > 0 && factor < 1) || dim < 2 || int(dim)%2 != 0 {
		k.fail("partial_rotary_factor %g of head_dim %d: an even number of dimensions, from 2 on, must turn", factor, c.HeadDim)
		return
	}
	c.RotaryDim = int(dim)
}

func (c Config) validateRotary() error {
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head_dim is %d: must be even for rotary positions", c.HeadDim)
	}
	if c.RotaryDim < 0 || c.RotaryDim >= c.HeadDim || c.RotaryDim%2 != 0 {
		return fmt.Errorf("%d rotary dimensions of head_dim %d: must be even and fewer", c.RotaryDim, c.HeadDim)
	}
	if c.MaxPosition*c.HeadDim > maxRotary {
		return fmt.Errorf("max_position_embeddings %d times head_dim %d is %d: must be at most %d", c.MaxPosition, c.HeadDim, c.MaxPosition*c.HeadDim, maxRotary)
	}
	for _, theta := range []struct {
		key   string
		value float64
	}{{"rope_theta", c.RopeTheta}, {"rope_local_base_freq", c.LocalTheta}} {
		if theta.value < 0 || math.IsNaN(theta.value) || math.IsInf(theta.value, 0) || theta.value == 0 && theta.key == "rope_theta" {
			return fmt.Errorf("%s is %g: must be positive and finite", theta.key, theta.value)
		}
	}
	if c.NoRope != nil && len(c.NoRope) != c.Layers {
		return fmt.Errorf("no_rope_layers has %d layers of %d", len(c.NoRope), c.Layers)
	}
	if c.RopeScaling != nil {
		return c.RopeScaling.validate()
	}
	return nil
}
