// Package arch defines the supported architectures. For each family of decoders it lists the keys of
// config.json and of GGUF metadata, the tensors with their shapes and places in the flat buffers, and the
// settings that are refused. Each family registers itself by name. The forward pass is in trainer/model:
// it reads a [Config] and its [Layout], and does not depend on the family.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package arch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Config is the architecture of a decoder-only model: all settings that determine the names and shapes of its tensors, and
// its forward pass. All families use gated MLPs, RMSNorm and RoPE.
type Config struct {
	Family string // a name of Families

	VocabSize int // vocab_size: rows of the embedding
	Hidden    int // hidden_size
	Layers    int // num_hidden_layers
	Heads     int // num_attention_heads: query heads
	KVHeads   int // num_key_value_heads
	HeadDim   int // head_dim: even; Heads*HeadDim need not be Hidden
	FFN       int // intermediate_size

	Mixture *Mixture // of experts, in families that have them; nil: the model is dense

	RMSEps      float64 // rms_norm_eps
	Rope        Rope
	MaxPosition int // max_position_embeddings
	Windows     Windows
	Queries     Queries
	Multipliers Multipliers
	LogitCap    float64     // final_logit_softcapping: logits z are LogitCap·tanh(z/LogitCap); 0: they are z
	ByLayer     *ByLayer    // nil: layers differ in windows and rotary positions alone
	ShortConv   *ShortConv  // nil: no layer convolves
	GatedDelta  *GatedDelta // nil: no layer has a gated delta rule

	Module *Module // the forward pass is a program, and the sizes of layers and heads are 0; nil: it is one of this project

	Tied          bool // tie_word_embeddings: the embedding is also the output head
	AttentionBias bool // attention_bias: biases on q, k, v and, in most families, o
	MLPBias       bool // mlp_bias: biases on gate, up and down, in families that have this key

	Tokens SpecialTokens

	Quantisation *Quantisation // how the folder of the configuration stores matrices; nil: as plain numbers

	// Wrapper is the model_type of a larger model that contains this language model; "": there is none. It determines the
	// names of tensors.
	Wrapper string

	// Raw is the parsed config.json, or nil. JSON copies the keys that Config does not have.
	Raw json.RawMessage
}

// Parameters returns the number of values in all tensors; a tied matrix counts once. c must be valid.
func (c Config) Parameters() int64 { return c.Layout().Numel }

// Features are the parts of the forward pass that only some families have.
type Features struct {
	NormOffset     float64 // added to the weights of norms: 1 in families whose files store weights minus 1
	NormsAfterRope bool    // norms of query and key heads are applied after rotation, not before it
	ValueNorms     bool    // heads of values are normalised, without weights; products of queries and keys are then not scaled
	GELU           bool    // MLPs have the tanh form of GELU in place of SiLU, and the embedding is multiplied by the square root of Hidden
	ClampedGates   bool    // experts have the gates of gpt-oss (torch.ClampedGLU) in place of SwiGLU

	// A plane of the rotary embedding consists of neighbouring dimensions of a head. Otherwise its two dimensions are half
	// of the rotated dimensions apart.
	RotaryPairs bool
}

// Features returns the features of the family.
func (c Config) Features() Features { return families[c.Family].Features }

// WithDefaults fills the fields that a configured shape may omit: KVHeads (Heads), HeadDim (Hidden/Heads),
// RMSEps (1e-6) and Rope.Theta (10000). In families that have them it also fills Rope.LocalTheta (the family's),
// and the Shared (FFN) and the Sigmoid (the family's) of a mixture. Convolutions are in two of three
// layers. Gated delta rules are in three of four, with as many heads of the same size as attention.
func (c Config) WithDefaults() Config {
	c.KVHeads = cmp.Or(c.KVHeads, c.Heads)
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	c.RMSEps = cmp.Or(c.RMSEps, 1e-6)
	c.Rope.Theta = cmp.Or(c.Rope.Theta, 10000)
	f := families[c.Family]
	if f == nil {
		return c
	}
	c.Rope.LocalTheta = cmp.Or(c.Rope.LocalTheta, f.defaults.Rope.LocalTheta)
	if f.has.shortConv && c.ShortConv == nil {
		c.ShortConv = &ShortConv{Layers: eachLayer(c.Layers, func(i int) bool { return i%3 != 2 }), Width: 3}
	}
	if f.has.gatedDelta {
		c.Rope.Dim = cmp.Or(c.Rope.Dim, max(2, c.HeadDim/8*2))
		if c.GatedDelta == nil {
			c.GatedDelta = defaultGatedDelta(c)
		}
	}
	if c.Mixture != nil {
		m := *c.Mixture
		if f.sigmoidRouter() {
			m.Sigmoid = cmp.Or(m.Sigmoid, f.defaults.Mixture.Sigmoid)
		}
		if f.sharedExpert() {
			m.Shared = cmp.Or(m.Shared, c.FFN)
		}
		c.Mixture = &m
	}
	return c
}

// boundedLayers returns num_hidden_layers if it is from 0 to maxLayers, otherwise the nearer bound. Slices with an entry for each layer are
// made before Validate checks the number.
func boundedLayers(n int) int { return min(max(n, 0), maxLayers) }

// Upper limits on sizes: far above any published model, and so low that no product of two sizes overflows.
const (
	MaxVocab    = 1 << 22
	maxHidden   = 1 << 17
	maxLayers   = 1 << 10
	maxHeads    = 1 << 12
	maxHeadDim  = 1 << 12
	maxFFN      = 1 << 20
	maxPosition = 1 << 25

	// For MaxPosition * HeadDim: the rotary tables then take 512 MiB. A context of a million tokens fits with heads of 128.
	maxRotary = 1 << 27
)

// Validate checks every size and combination. The error names the key of config.json.
func (c Config) Validate() error {
	f, err := familyOf(c.Family)
	if err != nil {
		return err
	}
	if c.Module == nil && !(c.RMSEps > 0 && c.RMSEps < 1) {
		return fmt.Errorf("rms_norm_eps is %g: must be above 0 and below 1", c.RMSEps)
	}
	for _, s := range c.settings() {
		if err := s.validate(f); err != nil {
			return err
		}
	}
	if c.Module != nil {
		return validateModule(c)
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	}
	for _, s := range []struct {
		key      string
		set, has bool
	}{
		{"sliding_window", c.Windows != nil, f.has.windows},
		{"no_rope_layers", c.Rope.Without != nil, f.has.noRope},
		{"rope_local_base_freq", c.Rope.LocalTheta != 0, f.defaults.Rope.LocalTheta != 0},
		{"query_pre_attn_scalar", c.Queries.Scalar != 0, f.has.queryScalar},
		{"llama_4_scaling_beta", c.Queries.Growth != QueryGrowth{}, f.has.queryGrowth},
		{"partial_rotary_factor", c.Rope.Dim != 0, f.partialRotary != 0},
		{"final_logit_softcapping", c.LogitCap != 0, f.has.byLayer},
	} {
		if s.set && !s.has {
			return fmt.Errorf("%s is set: model_type %s does not have this key", s.key, f.name)
		}
	}
	if c.Queries.Scalar != 0 && !positiveFinite(c.Queries.Scalar) {
		return fmt.Errorf("query_pre_attn_scalar is %g: must be positive and finite", c.Queries.Scalar)
	}
	if c.LogitCap != 0 && !positiveFinite(c.LogitCap) {
		return fmt.Errorf("final_logit_softcapping is %g: must be positive and finite", c.LogitCap)
	}
	if err := errors.Join(c.Windows.validate(c.Layers), c.ByLayer.validate(c, f)); err != nil {
		return err
	}
	return errors.Join(c.Multipliers.validate(f), c.Queries.Growth.validate(), c.Mixture.validate(c, f), c.ShortConv.validate(c, f),
		c.GatedDelta.validate(c, f), c.Rope.validate(c, f), c.Tokens.validate(c.VocabSize))
}

func positiveFinite(v float64) bool { return v > 0 && !math.IsInf(v, 1) }
