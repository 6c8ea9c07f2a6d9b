package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/durable"
)

// ReadConfig parses config.json of a Hugging Face folder, and generation_config.json if there is one.
func ReadConfig(dir string) (Config, error) {
	data, err := durable.ReadSmall(filepath.Join(dir, configFile), maxConfigBytes)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", configFile, err)
	}
	cfg, err := ParseConfig(data)
	if err != nil {
		return Config{}, err
	}
	data, err = durable.ReadSmall(filepath.Join(dir, generationFile), maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return cfg, nil
	}
	if err == nil {
		err = cfg.applyGeneration(data)
	}
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", generationFile, err)
	}
	return cfg, nil
}

// ParseConfig reads the text of a config.json in the style of transformers 4 or 5. Absent keys take the
// defaults of transformers; anything the forward pass does not implement is an error that names the key.
func ParseConfig(data []byte) (Config, error) {
	object, err := parseObject(data)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", configFile, err)
	}
	cfg, err := configFrom(&keys{values: object})
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", configFile, err)
	}
	cfg.Raw = append(json.RawMessage(nil), data...)
	return cfg, nil
}

// applyGeneration takes the token ids of a generation_config.json, which prevail over config.json's.
func (c *Config) applyGeneration(data []byte) error {
	object, err := parseObject(data)
	if err != nil {
		return err
	}
	k := &keys{values: object}
	for _, t := range []struct {
		key string
		ids *[]int32
	}{{"bos_token_id", &c.BOS}, {"eos_token_id", &c.EOS}, {"pad_token_id", &c.Pad}} {
		if ids := k.ids(t.key); ids != nil {
			*t.ids = ids
		}
	}
	return errors.Join(k.err, c.Validate())
}

var architectures = map[string]string{
	Llama: "LlamaForCausalLM",
	Qwen2: "Qwen2ForCausalLM",
	Qwen3: "Qwen3ForCausalLM",
}

func configFrom(k *keys) (Config, error) {
	family, err := familyOf(k)
	if err != nil {
		return Config{}, err
	}
	c := defaultConfig(family)
	k.integer("vocab_size", &c.VocabSize)
	k.integer("hidden_size", &c.Hidden)
	k.integer("num_hidden_layers", &c.Layers)
	k.integer("num_attention_heads", &c.Heads)
	k.integer("intermediate_size", &c.FFN)
	k.integer("max_position_embeddings", &c.MaxPosition)
	k.float("rms_norm_eps", &c.RMSEps)
	k.boolean("tie_word_embeddings", &c.Tied)
	if family != Qwen2 {
		k.boolean("attention_bias", &c.AttentionBias)
	}
	if family == Llama {
		k.boolean("mlp_bias", &c.MLPBias)
	}
	c.BOS, c.EOS, c.Pad = k.idsOr("bos_token_id", c.BOS), k.idsOr("eos_token_id", c.EOS), k.ids("pad_token_id")

	if k.null("num_key_value_heads") || family == Llama && !k.has("num_key_value_heads") {
		c.KVHeads = c.Heads
	} else {
		k.integer("num_key_value_heads", &c.KVHeads)
	}
	if k.has("head_dim") && !k.null("head_dim") {
		k.integer("head_dim", &c.HeadDim)
	} else if family != Qwen3 {
		if c.Heads < 1 || c.Hidden%c.Heads != 0 {
			return Config{}, fmt.Errorf("hidden_size %d is not a multiple of num_attention_heads %d, and head_dim is absent", c.Hidden, c.Heads)
		}
		c.HeadDim = c.Hidden / c.Heads
	}
	c.RopeTheta, c.RopeScaling = k.rope()
	k.refuseUnimplemented()
	return c, k.err
}

// defaultConfig holds the values transformers assumes for keys that are absent.
func defaultConfig(family string) Config {
	c := Config{Family: family, VocabSize: 32000, Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, FFN: 11008,
		RMSEps: 1e-6, MaxPosition: 2048}
	if family == Llama {
		c.BOS, c.EOS = []int32{1}, []int32{2}
		return c
	}
	c.VocabSize, c.FFN, c.MaxPosition = 151936, 22016, 32768
	c.AttentionBias = family == Qwen2
	if family == Qwen3 {
		c.QKNorm, c.HeadDim = true, 128
	}
	return c
}

// familyOf reads model_type and architectures, which must agree where both are present.
func familyOf(k *keys) (string, error) {
	var family string
	k.text("model_type", &family)
	named, _ := k.values["architectures"].([]any)
	if family == "" && len(named) == 1 {
		for f, architecture := range architectures {
			if named[0] == architecture {
				family = f
			}
		}
	}
	want, supported := architectures[family]
	switch {
	case k.err != nil:
		return "", k.err
	case family == "" && len(named) > 0:
		return "", fmt.Errorf("architectures %s is not supported: use LlamaForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM", show(named))
	case family == "":
		return "", errors.New("model_type is missing")
	case strings.Contains(family, "moe") || family == "mixtral":
		return "", fmt.Errorf("model_type %q is a mixture of experts, which is not supported: use llama, qwen2 or qwen3", brief(family))
	case !supported:
		return "", fmt.Errorf("model_type %q is not supported: use llama, qwen2 or qwen3", brief(family))
	}
	for _, a := range named {
		if a != want {
			return "", fmt.Errorf("architectures names %s where model_type %q needs %s", show(a), family, want)
		}
	}
	return family, nil
}

// refuseUnimplemented reports keys that change the forward pass in ways the trainer does not implement.
func (k *keys) refuseUnimplemented() {
	activation, partial, sliding := "silu", 1.0, false
	k.text("hidden_act", &activation)
	if activation != "silu" && activation != "swish" {
		k.fail("hidden_act %q is not supported: only silu", brief(activation))
	}
	k.float("partial_rotary_factor", &partial)
	if partial != 1 {
		k.fail("partial_rotary_factor %g is not supported: only 1", partial)
	}
	k.boolean("use_sliding_window", &sliding)
	if sliding {
		k.fail("use_sliding_window true is not supported: attention here is full")
	}
	if layers, ok := k.values["layer_types"].([]any); ok {
		for i, l := range layers {
			if l != "full_attention" {
				k.fail("layer_types[%d] is %s: only full_attention is supported", i, show(l))
			}
		}
	}
	for _, key := range []string{"quantization_config", "compression_config"} {
		if k.has(key) && !k.null(key) {
			k.fail("%s: quantised Hugging Face checkpoints are not supported; use the unquantised one or a GGUF", key)
		}
	}
	for _, key := range []string{"num_experts", "num_local_experts", "n_routed_experts"} {
		experts := 0
		k.integerOrNull(key, &experts)
		if experts > 0 {
			k.fail("%s is %d: mixtures of experts are not supported", key, experts)
		}
	}
}

// rope reads rope_theta and rope_scaling, or rope_parameters, which holds both.
func (k *keys) rope() (theta float64, scaling *RopeLlama3) {
	theta = 10000
	if !k.null("rope_theta") {
		k.float("rope_theta", &theta)
	}
	section := "rope_scaling"
	if k.values[section] == nil {
		section = "rope_parameters"
	}
	if k.values[section] == nil {
		return theta, nil
	}
	object, ok := k.values[section].(map[string]any)
	if !ok {
		k.fail("%s is not an object", section)
		return theta, nil
	}
	in := &keys{values: object, prefix: section + "."}
	kind := "default"
	in.text("type", &kind)
	in.text("rope_type", &kind)
	in.float("rope_theta", &theta)
	switch kind {
	case "default":
		if _, perLayer := object["full_attention"]; perLayer {
			in.fail("full_attention: parameters by layer type are not supported")
		}
	case "llama3":
		scaling = &RopeLlama3{}
		in.require("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
		in.float("factor", &scaling.Factor)
		in.float("low_freq_factor", &scaling.LowFreqFactor)
		in.float("high_freq_factor", &scaling.HighFreqFactor)
		in.integer("original_max_position_embeddings", &scaling.OriginalMaxPosition)
	default:
		in.fail("rope_type %q is not supported: only default and llama3", brief(kind))
	}
	if k.err == nil {
		k.err = in.err
	}
	return theta, scaling
}

// keys reads typed values out of a JSON object. The first failure sticks in err; a target whose key is
// absent keeps its value.
type keys struct {
	values map[string]any
	prefix string
	err    error
}

func (k *keys) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(k.prefix+format, args...)
	}
}

func (k *keys) has(key string) bool { _, ok := k.values[key]; return ok }

// null reports whether key is present and null.
func (k *keys) null(key string) bool { v, ok := k.values[key]; return ok && v == nil }

func (k *keys) require(names ...string) {
	for _, key := range names {
		if !k.has(key) {
			k.fail("%s is missing", key)
		}
	}
}

func (k *keys) integer(key string, to *int) {
	v, ok := k.values[key]
	if !ok {
		return
	}
	number, _ := v.(json.Number)
	n, err := number.Int64()
	if err != nil || n < math.MinInt32 || n > math.MaxInt32 {
		k.fail("%s is %s: must be an integer below 2^31", key, show(v))
		return
	}
	*to = int(n)
}

func (k *keys) integerOrNull(key string, to *int) {
	if !k.null(key) {
		k.integer(key, to)
	}
}

func (k *keys) float(key string, to *float64) {
	v, ok := k.values[key]
	if !ok {
		return
	}
	number, _ := v.(json.Number)
	f, err := number.Float64()
	if err != nil {
		k.fail("%s is %s: must be a number", key, show(v))
		return
	}
	*to = f
}

func (k *keys) boolean(key string, to *bool) {
	v, ok := k.values[key]
	if !ok {
		return
	}
	b, isBool := v.(bool)
	if !isBool {
		k.fail("%s is %s: must be true or false", key, show(v))
		return
	}
	*to = b
}

func (k *keys) text(key string, to *string) {
	v, ok := k.values[key]
	if !ok {
		return
	}
	s, isText := v.(string)
	if !isText {
		k.fail("%s is %s: must be a string", key, show(v))
		return
	}
	*to = s
}

// ids reads a token id, a list of them, or null (also written -1) for none.
func (k *keys) ids(key string) []int32 {
	list, isList := k.values[key].([]any)
	if !isList {
		if k.values[key] == nil {
			return nil
		}
		list = []any{k.values[key]}
	}
	var ids []int32
	for _, v := range list {
		number, _ := v.(json.Number)
		n, err := number.Int64()
		switch {
		case err != nil || n < -1 || n > math.MaxInt32:
			k.fail("%s holds %s: must be token ids", key, show(v))
			return nil
		case n >= 0:
			ids = append(ids, int32(n))
		}
	}
	return ids
}

func (k *keys) idsOr(key string, absent []int32) []int32 {
	if !k.has(key) {
		return absent
	}
	return k.ids(key)
}
