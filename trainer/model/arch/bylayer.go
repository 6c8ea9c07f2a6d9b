package arch

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// ByLayer lists how the layers of Gemma 4 differ from each other. Global layers have no window.
type ByLayer struct {
	GlobalHeadDim int  // global_head_dim: HeadDim of global layers; 0: HeadDim
	GlobalKVHeads int  // num_global_key_value_heads: KVHeads of global layers; 0: KVHeads
	KeysAreValues bool // attention_k_eq_v: global layers use the projection of keys, before its norm, as values too
	SharedKV      int  // num_kv_shared_layers: the last SharedKV layers use the keys and values of others (LayerConfig.KVLayer)
	DoubleWide    bool // use_double_wide_mlp: the MLPs of the last SharedKV layers are twice as wide

	Inputs      int // hidden_size_per_layer_input: width of the embedding that each layer adds; 0: layers add none
	InputsVocab int // vocab_size_per_layer_input: rows of these embeddings
}

// UnreadGGUF does the same as Unread, for names in GGUF files.
func (c Config) UnreadGGUF(name string) bool {
	var layer int
	var module string
	if n, _ := fmt.Sscanf(name, "blk.%d.%s", &layer, &module); n != 2 || layer < 0 || layer >= c.Layers || c.Layer(layer).KVLayer() == layer {
		return false
	}
	return module == "attn_k.weight" || module == "attn_v.weight" || module == "attn_k_norm.weight"
}

// normal replaces values that change nothing with 0. It returns nil if all layers are alike.
func (b *ByLayer) normal(c *Config) *ByLayer {
	if b.GlobalHeadDim == c.HeadDim {
		b.GlobalHeadDim = 0
	}
	if b.GlobalKVHeads == c.KVHeads {
		b.GlobalKVHeads = 0
	}
	if b.Inputs == 0 {
		b.InputsVocab = 0
	}
	if *b == (ByLayer{}) {
		return nil
	}
	return b
}

// orZero returns b, or the zero value if b is nil.
func (b *ByLayer) orZero() *ByLayer {
	if b == nil {
		return &ByLayer{}
	}
	return b
}

func (b *ByLayer) settings() []setting {
	return []setting{
		{json: "attention_k_eq_v", to: &b.KeysAreValues},
		{json: "num_kv_shared_layers", gguf: "attention.shared_kv_layers", to: &b.SharedKV, null: true},
		{json: "use_double_wide_mlp", to: &b.DoubleWide, null: true},
		{json: "hidden_size_per_layer_input", gguf: "embedding_length_per_layer_input", to: &b.Inputs, null: true},
	}
}

// Unread reports whether a folder may have a tensor that no pass reads. Such a tensor is a
// projection or norm of keys or values in a layer that shares the keys and values of another layer.
func (c Config) Unread(name string) bool {
	var layer int
	var module string
	rest, inside := strings.CutPrefix(name, c.Body())
	n, _ := fmt.Sscanf(rest, "layers.%d.self_attn.%s", &layer, &module)
	if !inside || n != 2 || layer < 0 || layer >= c.Layers || c.Layer(layer).KVLayer() == layer {
		return false
	}
	module, _, _ = strings.Cut(module, ".")
	return module == "k_proj" || module == "v_proj" || module == "k_norm" || module == "v_norm"
}

// LayerInputs returns the width of the embedding that each layer adds, 0 if layers add none.
func (c Config) LayerInputs() int { return c.ByLayer.orZero().Inputs }

func (b *ByLayer) validate(c Config, f *family) error {
	switch {
	case b == nil:
		return nil
	case !f.has.byLayer:
		return fmt.Errorf("layers that differ: model_type %s has none", f.name)
	case b.GlobalHeadDim < 0 || b.GlobalHeadDim > maxHeadDim || b.GlobalHeadDim%2 != 0:
		return fmt.Errorf("global_head_dim is %d: must be even and at most %d", b.GlobalHeadDim, maxHeadDim)
	case b.GlobalKVHeads < 0 || b.GlobalKVHeads > 0 && c.Heads%b.GlobalKVHeads != 0:
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_global_key_value_heads %d", c.Heads, b.GlobalKVHeads)
	case b.SharedKV < 0 || b.SharedKV >= c.Layers:
		return fmt.Errorf("num_kv_shared_layers is %d: must be at least 0 and below num_hidden_layers %d", b.SharedKV, c.Layers)
	case b.Inputs < 0 || b.Inputs > maxHeadDim:
		return fmt.Errorf("hidden_size_per_layer_input is %d: must be 0 to %d", b.Inputs, maxHeadDim)
	case b.Inputs > 0 && (b.InputsVocab < c.VocabSize || b.InputsVocab > MaxVocab):
		return fmt.Errorf("vocab_size_per_layer_input is %d: must be at least vocab_size %d, and at most %d", b.InputsVocab, c.VocabSize, MaxVocab)
	}
	for i := c.Layers - b.SharedKV; i < c.Layers; i++ {
		if c.Layer(i).KVLayer() == i {
			return fmt.Errorf("num_kv_shared_layers is %d: layer %d, of %s, has no layer of its type before them to share with", b.SharedKV, i,
				c.layerTypes()[i])
		}
	}
	if c.MaxPosition*cmp.Or(b.GlobalHeadDim, 1) > maxRotary {
		return errors.New("max_position_embeddings times global_head_dim is too large for rotary tables")
	}
	return nil
}

// addInputs adds the embedding for all layers, the projection of the model's embedding to the same [Layers·Inputs] values, and the
// norm of a layer's values.
func (b *ByLayer) addInputs(l *Layout, c Config) {
	if b == nil || b.Inputs == 0 {
		return
	}
	width, d := int64(c.Layers)*int64(b.Inputs), int64(c.Hidden)
	l.add("inputs_embed", Matrix, Tensor{Name: "model.embed_tokens_per_layer.weight", GGUF: "per_layer_token_embd.weight",
		Shape: []int64{int64(b.InputsVocab), width}})
	l.add("inputs", Matrix, Tensor{Name: "model.per_layer_model_projection.weight", GGUF: "per_layer_model_proj.weight", Shape: []int64{width, d}})
	l.add("inputs_norm", Norm, Tensor{Name: "model.per_layer_projection_norm.weight", GGUF: "per_layer_proj_norm.weight", Shape: []int64{int64(b.Inputs)}})
}

// inputOfLayer adds the gate of a layer's embedding, the projection into the residual stream, and the norm of the result.
func (l *layer) inputOfLayer() {
	width := l.c.LayerInputs()
	if width == 0 {
		return
	}
	l.linear("input_gate", Matrix, l.c.Hidden, module{name: "per_layer_input_gate", gguf: "inp_gate", rows: width})
	l.linear("input_up", Residual, width, module{name: "per_layer_projection", gguf: "proj", rows: l.c.Hidden})
	l.norm("own_norm", "post_per_layer_input_norm", "post_norm", l.c.Hidden)
}

// factor adds the constant factor of a layer's result. Nothing trains it.
func (l *layer) factor() {
	l.add(FactorLeaf, Norm, Tensor{Name: fmt.Sprintf("model.layers.%d.layer_scalar", l.index),
		GGUF: fmt.Sprintf("blk.%d.layer_output_scale.weight", l.index), Shape: []int64{1}})
}

// FactorLeaf is the name of the factor's leaf within a layer.
const FactorLeaf = "factor"

// Constant reports whether no optimizer changes a leaf: in transformers it is a buffer, not a parameter.
func (l Leaf) Constant() bool {
	return l.Layer > 0 && (strings.HasSuffix(l.Name, "."+FactorLeaf) || strings.HasSuffix(l.Name, "."+ChoiceBiasLeaf))
}
