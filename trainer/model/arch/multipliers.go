package arch

import (
	"cmp"
	"fmt"
	"math"
)

// Multipliers are constant factors in the forward pass of Granite. Models of other families have zeros.
type Multipliers struct {
	Embedding float64 // embedding_multiplier, for the embedding's rows; 0: 1
	Residual  float64 // residual_multiplier, for the outputs of attention and MLP; 0: 1
	Attention float64 // attention_multiplier, for the products of queries and keys; 0: 1/√HeadDim
	Logits    float64 // logits_scaling, the divisor of logits; 0: 1
}

// keys lists the keys of both formats, each with its field and the value for which the field is 0.
func (m *Multipliers) keys(headDim int) []multiplierKey {
	return []multiplierKey{
		{"embedding_multiplier", "embedding_scale", &m.Embedding, 1},
		{"residual_multiplier", "residual_scale", &m.Residual, 1},
		{"attention_multiplier", "attention.scale", &m.Attention, 1 / math.Sqrt(float64(headDim))},
		{"logits_scaling", "logit_scale", &m.Logits, 1},
	}
}

type multiplierKey struct {
	key, gguf string
	value     *float64
	neutral   float64
}

// readMultipliers reads all four keys. An absent key stands for 1, as in transformers.
func readMultipliers(k *keys, c *Config) {
	for _, m := range c.Multipliers.keys(c.HeadDim) {
		*m.value = 1
		k.float(m.key, m.value)
		if !positiveFinite(*m.value) {
			k.fail("%s is %g: must be positive and finite", m.key, *m.value)
		}
		if *m.value == m.neutral {
			*m.value = 0
		}
	}
}

// writeMultipliers writes the keys that readMultipliers reads.
func writeMultipliers(c Config) map[string]any {
	object := map[string]any{}
	for _, m := range c.Multipliers.keys(c.HeadDim) {
		object[m.key] = decimal(cmp.Or(*m.value, m.neutral))
	}
	return object
}

// AttentionScale returns the factor of the products of queries and keys.
func (c Config) AttentionScale() float64 {
	if c.Features().ValueNorms {
		return 1
	}
	scalar := cmp.Or(c.Queries.Scalar, float64(c.HeadDim))
	return cmp.Or(c.Multipliers.Attention, 1/math.Sqrt(scalar))
}

// EmbeddingScale returns the factor by which the embedding's rows are multiplied before the first layer.
func (c Config) EmbeddingScale() float64 {
	if c.Features().GELU {
		return math.Sqrt(float64(c.Hidden))
	}
	return cmp.Or(c.Multipliers.Embedding, 1)
}

// ResidualScale returns the factor of the outputs of attention and MLP before they are added to the residual stream.
func (m Multipliers) ResidualScale() float64 { return cmp.Or(m.Residual, 1) }

// HiddenScale returns the factor of the last hidden states before the head, which is the factor of the logits.
func (m Multipliers) HiddenScale() float64 { return 1 / cmp.Or(m.Logits, 1) }

func (m Multipliers) validate(f *family) error {
	if m != (Multipliers{}) && !f.has.multipliers {
		return fmt.Errorf("multipliers %+v are set: model_type %s does not have them", m, f.name)
	}
	for _, k := range m.keys(1) {
		if *k.value != 0 && !positiveFinite(*k.value) {
			return fmt.Errorf("%s is %g: must be positive and finite", k.key, *k.value)
		}
	}
	return nil
}
