package arch

import (
	"cmp"
	"fmt"
	"math"
)

// Rope sets the rotary positions of all layers.
type Rope struct {
	Theta      float64     // rope_theta
	LocalTheta float64     // rope_local_base_freq: unscaled theta of layers with a window; 0: the same as other layers
	Scaling    RopeScaling // rope_scaling; nil: unscaled frequencies
	Dim        int         // head_dim × partial_rotary_factor: the dimensions of a head that are rotated; 0: all
	Without    []bool      // layers without rotary positions; nil: none
}

// Rotary is the rotary position embedding of a layer (Su et al. 2021). Layers with equal values share their tables.
type Rotary struct {
	Theta   float64
	Dim     int         // even: the first Dim dimensions of a head are rotated, in Dim/2 planes
	Scaling RopeScaling // nil: not scaled
}

// RotaryWidth returns the number of cosines and sines for each position, in the tables of all layers.
func (c Config) RotaryWidth() (width int64) {
	tables := map[Rotary]bool{}
	for i := range c.Layers {
		if r, ok := c.Layer(i).Rotary(); ok && !tables[r] {
			tables[r] = true
			width += int64(r.Dim)
		}
	}
	return width
}

// Frequencies returns the angles per position of the Dim/2 planes, in radians: Theta^(-2i/Dim), rescaled.
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

// Amplitude returns the factor of cosines and sines, and therefore of rotated queries and keys.
func (r Rotary) Amplitude() float64 {
	if r.Scaling == nil {
		return 1
	}
	return r.Scaling.amplitude()
}

func (r Rope) validate(c Config, f *family) error {
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head_dim is %d: must be even for rotary positions", c.HeadDim)
	}
	if r.Dim < 0 || r.Dim >= c.HeadDim || r.Dim%2 != 0 {
		return fmt.Errorf("%d rotary dimensions of head_dim %d: must be even and fewer", r.Dim, c.HeadDim)
	}
	if c.MaxPosition*c.HeadDim > maxRotary {
		return fmt.Errorf("max_position_embeddings %d times head_dim %d is %d: must be at most %d", c.MaxPosition, c.HeadDim,
			c.MaxPosition*c.HeadDim, maxRotary)
	}
	for _, theta := range []struct {
		key   string
		value float64
	}{{"rope_theta", r.Theta}, {"rope_local_base_freq", r.LocalTheta}} {
		if !positiveFinite(theta.value) && (theta.value != 0 || theta.key == "rope_theta") {
			return fmt.Errorf("%s is %g: must be positive and finite", theta.key, theta.value)
		}
	}
	if r.Without != nil && len(r.Without) != c.Layers {
		return fmt.Errorf("no_rope_layers lists %d layers, but the model has %d", len(r.Without), c.Layers)
	}
	if r.Scaling == nil {
		return nil
	}
	long, isLong := r.Scaling.(*RopeLong)
	_, proportional := r.Scaling.(*RopeProportional)
	switch {
	case proportional != f.has.byLayer:
		return fmt.Errorf("rope_scaling is a %T: model_type %s has another kind", r.Scaling, f.name)
	case isLong != f.has.longRope:
		return fmt.Errorf("rope_scaling is a %T: model_type %s does not support this kind", r.Scaling, f.name)
	case isLong:
		first, _ := c.Layer(0).Rotary()
		return cmp.Or(long.validate(), long.validateFor(first.Dim/2))
	}
	return r.Scaling.validate()
}
