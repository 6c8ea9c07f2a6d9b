package arch

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// ParseJSON reads the text of a config.json in the style of transformers 4 or 5. Absent keys take the defaults of
// transformers. A setting that the forward pass does not implement is an error that names the key.
func ParseJSON(data []byte) (Config, error) {
	object, err := strictjson.Object(data)
	if err != nil {
		return Config{}, err
	}
	text, wrapper := unwrap(&keys{values: object})
	if text.err != nil {
		return Config{}, text.err
	}
	c, err := fromKeys(text)
	c.Wrapper = wrapper
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return Config{}, err
	}
	c.Raw = append(json.RawMessage(nil), data...)
	return c, nil
}

func fromKeys(k *keys) (Config, error) {
	f, err := readFamily(k)
	if err != nil {
		return Config{}, err
	}
	if f.layer == nil {
		return readModule(k, f)
	}
	c := f.defaults
	k.read(append(baseSettings(&c), biasSettings(&c, f)...))
	readHeads(k, &c)
	for _, t := range c.Tokens.keys() {
		*t.ids = t.read(k, c.VocabSize)
	}
	switch {
	case f.defaults.Mixture != nil:
		readMixture(k, f, &c)
	case !f.has.byLayer: // which reads its experts itself
		refuseExperts(k)
	}
	if f.has.multipliers {
		readMultipliers(k, &c)
	}
	readRope(k, f, &c)
	refuseUnimplemented(k, f)
	c.Quantisation = readQuantisation(k)
	if f.read != nil {
		f.read(k, &c)
	}
	return c, k.err
}

// readHeads reads the number of key and value heads and the size of a head. It derives values that are null or that have no
// default.
func readHeads(k *keys, c *Config) {
	if c.KVHeads == 0 || k.null("num_key_value_heads") {
		c.KVHeads = c.Heads
	}
	if k.null("head_dim") {
		c.HeadDim = 0
	}
	if c.HeadDim == 0 && k.values["head_dim"] == nil {
		if c.Heads < 1 || c.Hidden%c.Heads != 0 {
			k.fail("hidden_size %d is not a multiple of num_attention_heads %d, and head_dim is absent", c.Hidden, c.Heads)
			return
		}
		c.HeadDim = c.Hidden / c.Heads
	}
	k.read(headSettings(c))
}

// refuseUnimplemented refuses keys that would change the forward pass in a way that no family implements.
func refuseUnimplemented(k *keys, f *family) {
	refuseActivation(k, f)
	if !f.has.windows {
		refuseWindows(k, f)
	}
	refused := []string{"clip_qkv", "attn_logit_softcapping"}
	if !f.has.byLayer {
		refused = append(refused, "use_bidirectional_attention", "final_logit_softcapping")
	}
	if !f.has.multipliers {
		for _, m := range new(Multipliers).keys(0) {
			refused = append(refused, m.key)
		}
	}
	for _, key := range refused {
		if v, has := k.values[key]; has && v != nil && v != false {
			k.fail("%s %s is not supported: only null", key, strictjson.Show(v))
		}
	}
}

// refuseExperts refuses a mixture of experts in a family of dense models.
func refuseExperts(k *keys) {
	for _, key := range []string{"num_experts", "num_local_experts", "n_routed_experts"} {
		experts := 0
		k.integerOrNull(key, &experts)
		if experts > 0 {
			k.fail("%s is %d: the family has no mixtures of experts", key, experts)
		}
	}
}

// refuseActivation refuses other activation functions of the MLPs' gates.
func refuseActivation(k *keys, f *family) {
	wanted := []string{"silu", "swish"}
	if f.GELU {
		wanted = []string{"gelu_pytorch_tanh"}
	}
	if f.anyGELU {
		wanted = append(wanted, "gelu")
	}
	for _, key := range []string{"hidden_act", "hidden_activation"} {
		activation := wanted[0]
		if !k.null(key) {
			k.text(key, &activation)
		}
		if !slices.Contains(wanted, activation) {
			k.fail("%s %q is not supported in model_type %s: only %s", key, strictjson.Brief(activation), f.name, wanted[0])
		}
	}
}

// refuseWindows refuses windows in families that do not have them.
func refuseWindows(k *keys, f *family) {
	sliding := false
	k.booleanOrNull("use_sliding_window", &sliding)
	if sliding {
		k.fail("use_sliding_window true is not supported in model_type %s: set it to false if the model was trained without a window", f.name)
	}
	if layers, ok := k.values["layer_types"].([]any); ok && !f.has.shortConv && !f.has.gatedDelta {
		for i, l := range layers {
			if l != fullAttention {
				k.fail("layer_types[%d] is %s: only %s is supported in model_type %s", i, strictjson.Show(l), fullAttention, f.name)
			}
		}
	}
}

// JSON returns a config.json that transformers 4 and 5 read, for weights stored as torchDType (float32, bfloat16 or
// float16). Keys that Config has come from Config; other keys of Raw are copied.
func (c Config) JSON(torchDType string) ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Wrapper != "" {
		return wrappedJSON(c.Raw, torchDType)
	}
	object := map[string]any{}
	if c.Module == nil {
		object = map[string]any{"initializer_range": 0.02, "use_cache": true, "attention_dropout": decimal(0)}
	}
	if c.Raw != nil {
		var err error
		if object, err = strictjson.Object(c.Raw); err != nil {
			return nil, err
		}
	}
	object["torch_dtype"] = torchDType
	if c.Module != nil {
		maps.Copy(object, c.keys())
		return indented(object)
	}
	delete(object, "dtype")           // both versions read torch_dtype
	delete(object, "rope_parameters") // both versions read rope_theta and rope_scaling
	delete(object, "quantization_config")
	delete(object, "compression_config")
	if c.Rope.Scaling != nil {
		delete(object, originalPositions) // it would override the value in rope_scaling
	}
	delete(object, "per_layer_config") // both versions read the keys of layers without a window
	maps.Copy(object, c.keys())
	return indented(object)
}

func (c Config) keys() map[string]any {
	object := jsonValues(c.settings())
	for _, t := range c.Tokens.keys() {
		object[t.key] = oneOrList(*t.ids)
	}
	object["model_type"] = c.Family
	if c.Module != nil {
		maps.Copy(object, c.Module.keys())
		return object
	}
	f := families[c.Family]
	object["architectures"], object["rope_scaling"] = []string{f.architecture}, nil
	if c.Rope.Scaling != nil {
		object["rope_scaling"] = c.Rope.Scaling.json()
	}
	if f.GELU {
		object["hidden_activation"] = "gelu_pytorch_tanh"
	} else {
		object["hidden_act"] = "silu"
	}
	if f.has.multipliers {
		maps.Copy(object, writeMultipliers(c))
	}
	if f.write != nil {
		maps.Copy(object, f.write(c))
	}
	if f.has.byLayer { // both types of layers are in rope_parameters
		delete(object, "rope_theta")
		delete(object, "rope_scaling")
	}
	if c.Mixture != nil {
		maps.Copy(object, c.Mixture.keys(f))
	}
	return object
}

// Notes returns sentences about keys of the config.json that ParseJSON read, if they have no effect or engines differ on them.
func Notes(c Config) (notes []string) {
	object, err := strictjson.Object(c.Raw)
	if err != nil {
		return nil
	}
	k, _ := unwrap(&keys{values: object})
	if note := yarnNote(c, k); note != "" {
		notes = append(notes, note)
	}
	for _, t := range c.Tokens.keys() {
		if _, note := t.inside(k, c.VocabSize); note != "" && !t.padding() {
			notes = append(notes, note)
		}
	}
	return notes
}

func indented(object map[string]any) ([]byte, error) {
	data, err := json.MarshalIndent(object, "", "  ")
	return append(data, '\n'), err
}

// decimal writes a number so that Python reads it as a float, which transformers requires for some keys.
func decimal(v float64) json.Number {
	format := byte('f')
	if v < 1e-4 || v >= 1e15 {
		format = 'g'
	}
	text := strconv.FormatFloat(v, format, -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return json.Number(text)
}
