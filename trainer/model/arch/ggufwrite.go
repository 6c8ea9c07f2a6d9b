package arch

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
)

// GGUF returns the metadata of the architecture for a GGUF file, in the types that FromGGUF reads, with numbers of 32 bits.
// It also returns the values of GGUFRopeFactors, which are nil without the scaling of Llama 3. GGUF has no key for some
// settings, and llama.cpp derives others from the size of the model. GGUF therefore reads the metadata again: a difference is
// an error that names the setting.
func (c Config) GGUF() (meta map[string]any, ropeFactors []float32, err error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	f := families[c.Family]
	if f.gguf == nil || f.gguf.readOnly {
		return nil, nil, fmt.Errorf("mgrpo cannot write model_type %s as GGUF: GGUF has no architecture for it, or mgrpo does not support that", c.Family)
	}
	c.Rope = c.Rope.withoutAlpha(c.HeadDim)
	name := f.ggufName()
	meta = map[string]any{"general.architecture": name}
	set := func(key string, value any) {
		switch v := value.(type) {
		case int:
			value = int64(v)
		case float64:
			value = float64(float32(v))
		}
		meta[name+"."+key] = value
	}
	for _, s := range c.settings() {
		if s.gguf != "" {
			set(s.gguf, s.value())
		}
	}
	set("attention.value_length", c.HeadDim)
	set("rope.dimension_count", cmp.Or(c.Rope.Dim, c.HeadDim))
	if f.gguf.write != nil {
		f.gguf.write(c, set)
	}
	switch scaling := c.Rope.Scaling.(type) {
	case *RopeLinear:
		set("rope.scaling.type", "linear")
		set("rope.scaling.factor", scaling.Factor)
	case *RopeYaRN:
		set("rope.scaling.type", "yarn")
		set("rope.scaling.factor", scaling.Factor)
		set("rope.scaling.original_context_length", scaling.OriginalMaxPosition)
	case *RopeLlama3:
		for _, frequency := range (Rotary{Theta: c.Rope.Theta, Dim: c.HeadDim}).Frequencies() {
			ropeFactors = append(ropeFactors, float32(1/scaling.scale(frequency)))
		}
	}
	return meta, ropeFactors, c.readAgain(meta, ropeFactors)
}

// readAgain compares c with the configuration that a reader derives from the metadata.
func (c Config) readAgain(meta map[string]any, ropeFactors []float32) error {
	shapes := map[string][]int64{}
	for _, t := range c.Layout().Tensors() {
		shapes[t.GGUF] = t.GGUFShape()
		if t.Stack > 0 {
			shapes[t.GGUF] = append([]int64{t.Stack}, t.Shape...)
		}
	}
	back, err := FromGGUF(meta, shapes, ropeFactors)
	if err != nil {
		return fmt.Errorf("GGUF: %w", err)
	}
	return difference("", reflect.ValueOf(c.forward()), reflect.ValueOf(back.forward()))
}

// difference returns an error for the first field in which two structs differ. prefix is the beginning of the fields' names.
func difference(prefix string, ours, theirs reflect.Value) error {
	for i := range ours.NumField() {
		name, a, b := prefix+ours.Type().Field(i).Name, ours.Field(i), theirs.Field(i)
		switch {
		case reflect.DeepEqual(a.Interface(), b.Interface()):
		case a.Kind() == reflect.Struct:
			return difference(name+".", a, b)
		default:
			return fmt.Errorf("GGUF cannot represent %s of this model: a reader would take %v for %v", name, show(b.Interface()), show(a.Interface()))
		}
	}
	return nil
}

// forward returns the configuration without the fields that do not affect the forward pass, with numbers rounded to
// float32.
func (c Config) forward() Config {
	c.Rope = c.Rope.withoutAlpha(c.HeadDim)
	c.Wrapper, c.Tokens, c.Raw, c.Quantisation = "", SpecialTokens{}, nil, nil
	numbers := []*float64{&c.RMSEps, &c.Rope.Theta, &c.Rope.LocalTheta, &c.Queries.Scalar, &c.LogitCap, &c.Queries.Growth.Beta}
	for _, k := range c.Multipliers.keys(c.HeadDim) {
		numbers = append(numbers, k.value)
	}
	for _, v := range numbers {
		*v = float64(float32(*v))
	}
	if !slices.ContainsFunc(c.Windows, func(w int) bool { return w != 0 }) {
		c.Windows = nil
	}
	if !slices.Contains(c.Rope.Without, true) {
		c.Rope.Without = nil
	}
	return c
}

func show(v any) any {
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() {
		return p.Elem().Interface()
	}
	return v
}
