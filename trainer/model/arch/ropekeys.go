package arch

import (
	"cmp"
	"encoding/json"
	"maps"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

const originalPositions = "original_max_position_embeddings"

// readRope reads rope_scaling, or rope_parameters, which also has rope_theta, as transformers' modeling_rope_utils does.
func readRope(k *keys, f *family, c *Config) {
	if f.has.byLayer {
		return // the family's own function reads these keys
	}
	if f.defaults.Rope.LocalTheta != 0 {
		k.floatOrNull("rope_local_base_freq", &c.Rope.LocalTheta)
		readRopeByLayerType(k, f, c)
		return
	}
	in := k.section("rope_scaling")
	if in == nil || len(in.values) == 0 {
		in = k.section("rope_parameters")
	}
	if in == nil {
		in = f.absentRope()
	}
	if k.has(originalPositions) || f.has.longRope { // it has priority over the value in the section; longrope does not read that value
		in.values = maps.Clone(in.values)
		if in.values == nil {
			in.values = map[string]any{}
		}
		delete(in.values, originalPositions)
		if k.has(originalPositions) {
			in.values[originalPositions] = k.values[originalPositions]
		}
	}
	readRopeParameters(in, f, c)
	readPartialRotary(k, f, in, c)
	if f.has.queryGrowth {
		readQueryGrowth(in, c)
	}
	k.fold(in)
}

// absentRope returns the values of a configuration that has no rope_parameters.
func (f *family) absentRope() *keys {
	if f.rope == "" {
		return &keys{}
	}
	object, err := strictjson.Object([]byte(f.rope))
	return &keys{values: object, err: err}
}

// section returns the object under a key, or nil if there is none.
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

// under returns the keys that begin with a prefix, without it.
func (k *keys) under(prefix string) *keys {
	in := &keys{values: map[string]any{}, prefix: k.prefix + prefix, gguf: k.gguf}
	for key, value := range k.values {
		if name, inside := strings.CutPrefix(key, prefix); inside {
			in.values[name] = value
		}
	}
	return in
}

// fold copies the error of a section to k unless k already has one.
func (k *keys) fold(section *keys) {
	if k.err == nil {
		k.err = section.err
	}
}

// readRopeByLayerType reads rope_parameters with an object for each type of layer, and rope_scaling. The keys of rope_scaling
// replace those for layers without a window.
func readRopeByLayerType(k *keys, f *family, c *Config) {
	in := k.section("rope_parameters")
	if in == nil {
		in = &keys{}
	}
	for key := range in.values {
		if key != fullAttention && key != slidingAttention {
			in.fail("%s: only %s and %s are expected here", strictjson.Brief(key), fullAttention, slidingAttention)
		}
	}
	full, scaling := in.section(fullAttention), k.section("rope_scaling")
	if scaling != nil && scaling.has("type") && !scaling.has("rope_type") {
		scaling.fail("type: transformers reads only rope_type in model_type %s", f.name)
		in.fold(scaling)
	}
	if full == nil {
		full = scaling
	} else if scaling != nil {
		full.values = maps.Clone(full.values)
		maps.Copy(full.values, scaling.values)
	}
	if full != nil {
		readRopeParameters(full, f, c)
		if yarn, ok := c.Rope.Scaling.(*RopeYaRN); ok && !yarn.Truncate {
			full.fail("truncate is false: transformers reads it outside of %s, where it is true", fullAttention)
		}
		readPartialRotary(k, f, full, c)
		in.fold(full)
	}
	if sliding := in.section(slidingAttention); sliding != nil {
		local := Config{Rope: Rope{Theta: c.Rope.LocalTheta}, MaxPosition: c.MaxPosition}
		readRopeParameters(sliding, f, &local)
		if local.Rope.Scaling != nil {
			sliding.fail("rope_type: layers with a window are supported without scaling only")
		}
		c.Rope.LocalTheta = local.Rope.Theta
		readPartialRotary(k, f, sliding, c)
		in.fold(sliding)
	}
	k.fold(in)
}

// readRopeParameters reads rope_theta and the scaling from a section. A scaling that changes nothing is treated as absent.
func readRopeParameters(k *keys, f *family, c *Config) {
	kind := "default"
	k.text("type", &kind)
	k.text("rope_type", &kind)
	k.float("rope_theta", &c.Rope.Theta)
	for key, value := range k.values {
		if _, object := value.(map[string]any); object {
			k.fail("%s: parameters by layer type are not supported in model_type %s", strictjson.Brief(key), f.name)
		}
	}
	if kind == "default" {
		return
	}
	if f.has.longRope && (kind == "longrope" || kind == "su" || kind == "yarn") { // older names
		readRopeLong(k, c)
		return
	}
	read, ok := ropeScalings[kind]
	if kind == "dynamic" && f.has.alpha && k.values["alpha"] != nil {
		read = readRopeAlpha
	}
	if !ok || f.has.longRope {
		k.fail("rope_type %q is not supported in model_type %s: use default%s", strictjson.Brief(kind), f.name,
			map[bool]string{false: ", linear, dynamic, llama3 or yarn", true: " or longrope"}[f.has.longRope])
		return
	}
	if scaling := read(k, c); !scaling.identity() {
		c.Rope.Scaling = scaling
	}
}

// readPartialRotary reads partial_rotary_factor, which is in `in` or in k.
func readPartialRotary(k *keys, f *family, in *keys, c *Config) {
	factor := cmp.Or(f.partialRotary, 1)
	k.floatOrNull("partial_rotary_factor", &factor)
	in.floatOrNull("partial_rotary_factor", &factor)
	if factor == 1 {
		return
	}
	if f.partialRotary == 0 {
		k.fail("partial_rotary_factor %g is not supported in model_type %s: only 1", factor, f.name)
	}
	dim := float64(c.HeadDim) * factor
	if !(factor > 0 && factor < 1) || dim < 2 || int(dim)%2 != 0 {
		k.fail("partial_rotary_factor %g of head_dim %d: must result in an even number of rotated dimensions, at least 2", factor, c.HeadDim)
		return
	}
	c.Rope.Dim = int(dim)
}

// section returns the scaling for a written config.json, or the type default if there is none.
func (r Rope) section() map[string]any {
	if r.Scaling == nil {
		return map[string]any{"rope_type": "default"}
	}
	return r.Scaling.json()
}

// partialFactor returns partial_rotary_factor for a written config.json.
func (r Rope) partialFactor(headDim int) json.Number {
	if r.Dim == 0 {
		return decimal(1)
	}
	return decimal(float64(r.Dim) / float64(headDim))
}
