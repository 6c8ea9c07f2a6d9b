package weights

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

var torchNames = map[DType]string{F32: "float32", BF16: "bfloat16", F16: "float16"}

// HFJSON returns a config.json that transformers 4 and 5 read, for weights stored as dtype. Keys of Raw
// that Config does not model are carried over; what Config models comes from Config.
func (c Config) HFJSON(dtype DType) ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	torchName, ok := torchNames[dtype]
	if !ok {
		return nil, fmt.Errorf("weights are written as F32, BF16 or F16, not %s", dtype)
	}
	object := map[string]any{"initializer_range": 0.02, "use_cache": true, "attention_dropout": decimal(0)}
	if c.Raw != nil {
		var err error
		if object, err = parseObject(c.Raw); err != nil {
			return nil, fmt.Errorf("%s: %w", configFile, err)
		}
	}
	delete(object, "dtype")           // torch_dtype is what both versions read
	delete(object, "rope_parameters") // rope_theta and rope_scaling likewise
	for key, value := range c.hfKeys() {
		object[key] = value
	}
	object["torch_dtype"] = torchName
	data, err := json.MarshalIndent(object, "", "  ")
	return append(data, '\n'), err
}

func (c Config) hfKeys() map[string]any {
	object := map[string]any{
		"architectures":           []string{architectures[c.Family]},
		"model_type":              c.Family,
		"vocab_size":              c.VocabSize,
		"hidden_size":             c.Hidden,
		"num_hidden_layers":       c.Layers,
		"num_attention_heads":     c.Heads,
		"num_key_value_heads":     c.KVHeads,
		"head_dim":                c.HeadDim,
		"intermediate_size":       c.FFN,
		"hidden_act":              "silu",
		"rms_norm_eps":            decimal(c.RMSEps),
		"max_position_embeddings": c.MaxPosition,
		"rope_theta":              decimal(c.RopeTheta),
		"rope_scaling":            nil,
		"tie_word_embeddings":     c.Tied,
		"bos_token_id":            oneOrList(c.BOS),
		"eos_token_id":            oneOrList(c.EOS),
		"pad_token_id":            oneOrList(c.Pad),
	}
	if r := c.RopeScaling; r != nil {
		object["rope_scaling"] = map[string]any{"rope_type": "llama3", "factor": decimal(r.Factor), "low_freq_factor": decimal(r.LowFreqFactor),
			"high_freq_factor": decimal(r.HighFreqFactor), "original_max_position_embeddings": r.OriginalMaxPosition}
	}
	switch c.Family {
	case Llama:
		object["attention_bias"], object["mlp_bias"] = c.AttentionBias, c.MLPBias
	case Qwen2:
		object["use_sliding_window"] = false
	case Qwen3:
		object["attention_bias"], object["use_sliding_window"] = c.AttentionBias, false
	}
	return object
}

// generationJSON returns a generation_config.json with the special token ids.
func (c Config) generationJSON() ([]byte, error) {
	object := map[string]any{"_from_model_config": true}
	for key, ids := range map[string][]int32{"bos_token_id": c.BOS, "eos_token_id": c.EOS, "pad_token_id": c.Pad} {
		if len(ids) > 0 {
			object[key] = oneOrList(ids)
		}
	}
	data, err := json.MarshalIndent(object, "", "  ")
	return append(data, '\n'), err
}

// oneOrList writes token ids as transformers does: null, one number, or a list.
func oneOrList(ids []int32) any {
	switch len(ids) {
	case 0:
		return nil
	case 1:
		return ids[0]
	}
	return ids
}

// decimal writes a number so that Python reads a float, which transformers insists on in places.
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
