package weights

import (
	"encoding/json"
	"fmt"
	"math"
)

// Families whose forward pass the trainer implements.
const (
	Llama = "llama"
	Qwen2 = "qwen2"
	Qwen3 = "qwen3"
)

// Config is the architecture of a decoder-only model: everything that fixes the names and shapes of its
// tensors and what its forward pass computes. All families use SwiGLU with SiLU, RMSNorm and RoPE.
type Config struct {
	Family string // Llama, Qwen2 or Qwen3

	VocabSize int // vocab_size: rows of the embedding
	Hidden    int // hidden_size
	Layers    int // num_hidden_layers
	Heads     int // num_attention_heads: query heads
	KVHeads   int // num_key_value_heads
	HeadDim   int // head_dim: even; Heads*HeadDim need not be Hidden
	FFN       int // intermediate_size

	RMSEps      float64     // rms_norm_eps
	RopeTheta   float64     // rope_theta
	RopeScaling *RopeLlama3 // nil: unscaled frequencies
	MaxPosition int         // max_position_embeddings

	Tied          bool // tie_word_embeddings: the embedding is the output head too
	AttentionBias bool // biases on q, k and v (see OutputBias for o)
	MLPBias       bool // biases on gate, up and down
	QKNorm        bool // RMSNorm over HeadDim on every query and key head, before RoPE

	BOS []int32 // at most one id
	EOS []int32 // ids that end generation; generation_config.json's where it has them
	Pad []int32 // at most one id

	// Raw is the config.json this was parsed from (nil otherwise). HFJSON carries its other keys over.
	Raw json.RawMessage
}

// RopeLlama3 rescales RoPE frequencies as Llama 3.1 does: wavelengths above
// OriginalMaxPosition/LowFreqFactor are stretched by Factor, those below
// OriginalMaxPosition/HighFreqFactor kept, those between blended.
type RopeLlama3 struct {
	Factor              float64
	LowFreqFactor       float64
	HighFreqFactor      float64
	OriginalMaxPosition int
}

// InvFreqScale returns what the inverse frequency f (radians a position) is multiplied by.
func (r RopeLlama3) InvFreqScale(f float64) float64 {
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

// OutputBias reports whether o_proj has a bias: where q, k and v have one, except in Qwen2.
func (c Config) OutputBias() bool { return c.AttentionBias && c.Family != Qwen2 }

// Parameters returns the number of trained values; a tied matrix counts once.
func (c Config) Parameters() int64 {
	var n int64
	for _, t := range ExpectedTensors(c) {
		n += t.Numel()
	}
	return n
}

// Upper limits on sizes: far above any published model, low enough that no product of two overflows.
const (
	maxVocab    = 1 << 22
	maxHidden   = 1 << 17
	maxLayers   = 1 << 10
	maxHeads    = 1 << 12
	maxHeadDim  = 1 << 12
	maxFFN      = 1 << 20
	maxPosition = 1 << 25

	// Of MaxPosition * HeadDim: the rotary tables then take 512 MiB. A context of a million tokens fits with heads of 128.
	maxRotary = 1 << 27
)

// Validate checks every size and combination; the error names the config.json key at fault.
func (c Config) Validate() error {
	switch c.Family {
	case Llama, Qwen2, Qwen3:
	default:
		return fmt.Errorf("model_type %q is not supported: use llama, qwen2 or qwen3", c.Family)
	}
	for _, s := range []struct {
		key        string
		value, max int
	}{
		{"vocab_size", c.VocabSize, maxVocab},
		{"hidden_size", c.Hidden, maxHidden},
		{"num_hidden_layers", c.Layers, maxLayers},
		{"num_attention_heads", c.Heads, maxHeads},
		{"num_key_value_heads", c.KVHeads, maxHeads},
		{"head_dim", c.HeadDim, maxHeadDim},
		{"intermediate_size", c.FFN, maxFFN},
		{"max_position_embeddings", c.MaxPosition, maxPosition},
	} {
		if s.value < 1 || s.value > s.max {
			return fmt.Errorf("%s is %d: must be 1 to %d", s.key, s.value, s.max)
		}
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head_dim is %d: must be even for rotary positions", c.HeadDim)
	}
	if c.MaxPosition*c.HeadDim > maxRotary {
		return fmt.Errorf("max_position_embeddings %d times head_dim %d is %d: must be at most %d", c.MaxPosition, c.HeadDim, c.MaxPosition*c.HeadDim, maxRotary)
	}
	if !(c.RMSEps > 0 && c.RMSEps < 1) {
		return fmt.Errorf("rms_norm_eps is %g: must be above 0 and below 1", c.RMSEps)
	}
	if !(c.RopeTheta > 0) || math.IsInf(c.RopeTheta, 0) {
		return fmt.Errorf("rope_theta is %g: must be positive and finite", c.RopeTheta)
	}
	if err := c.validateFamily(); err != nil {
		return err
	}
	if c.RopeScaling != nil {
		if err := c.RopeScaling.validate(); err != nil {
			return err
		}
	}
	return c.validateTokens()
}

func (c Config) validateFamily() error {
	if c.Family == Qwen2 && !c.AttentionBias {
		return fmt.Errorf("model_type qwen2 always has q, k and v biases")
	}
	if c.QKNorm != (c.Family == Qwen3) {
		return fmt.Errorf("model_type %s: q/k norms belong to qwen3, which always has them", c.Family)
	}
	if c.MLPBias && c.Family != Llama {
		return fmt.Errorf("mlp_bias: model_type %s has no mlp biases", c.Family)
	}
	return nil
}

func (c Config) validateTokens() error {
	for _, t := range []struct {
		key string
		ids []int32
		max int
	}{{"bos_token_id", c.BOS, 1}, {"eos_token_id", c.EOS, 64}, {"pad_token_id", c.Pad, 1}} {
		if len(t.ids) > t.max {
			return fmt.Errorf("%s lists %d ids: at most %d", t.key, len(t.ids), t.max)
		}
		for _, id := range t.ids {
			if id < 0 || int(id) >= c.VocabSize {
				return fmt.Errorf("%s %d is outside the vocabulary of %d", t.key, id, c.VocabSize)
			}
		}
	}
	return nil
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

// WithDefaults fills what a shape written by hand may leave out: KVHeads (Heads), HeadDim
// (Hidden/Heads), RMSEps (1e-6), RopeTheta (10000), and the flags its family implies.
func (c Config) WithDefaults() Config {
	if c.KVHeads == 0 {
		c.KVHeads = c.Heads
	}
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	if c.RMSEps == 0 {
		c.RMSEps = 1e-6
	}
	if c.RopeTheta == 0 {
		c.RopeTheta = 10000
	}
	c.AttentionBias = c.AttentionBias || c.Family == Qwen2
	c.QKNorm = c.QKNorm || c.Family == Qwen3
	return c
}
