package arch

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// gguf describes the GGUF files of a family: general.architecture and the keys that begin with the family's name.
type gguf struct {
	name        string // of the architecture; "": the family's
	interleaved bool   // the two halves of each query and key head are interleaved row by row
	ropeFactors bool   // files may have GGUFRopeFactors, the divisors of Llama 3's scaling
	fraction    bool   // files have GGUFRopeFactors, which are 1 for planes that are rotated
	finalNorm   string // name of the norm after the layers; "": output_norm

	fits func(file *keys) bool // reports whether a file belongs to this family, if two families share the architecture's name; may be nil

	read func(k *keys, c *Config) // reads or refuses the architecture's own keys; may be nil

	write func(c Config, set func(key string, value any)) // the same keys; may be nil

	readOnly bool // this package reads such files and does not write them
}

// Names in GGUF files.
const (
	ggufEmbedding = "token_embd.weight"
	ggufHead      = "output.weight"

	// GGUFRopeFactors is a float32 tensor [HeadDim/2] that is not trained. FromGGUF reads it.
	GGUFRopeFactors = "rope_freqs.weight"
)

// interleaved returns Tensor.Pairs of q and k.
func (f *family) interleaved(c Config) int64 {
	if f.gguf == nil || !f.gguf.interleaved {
		return 0
	}
	return int64(c.HeadDim) / 2
}

// FromGGUF derives the architecture from a file's metadata, and from the shapes of its tensors
// (rows first, by GGUF name). It also reads the values of GGUFRopeFactors (nil if the file has
// no such tensor). Metadata values are string, bool, int64, uint64, float64 or slices.
func FromGGUF(meta map[string]any, shapes map[string][]int64, ropeFactors []float32) (Config, error) {
	file := &keys{values: meta, prefix: "metadata: ", gguf: true}
	f := familyGGUF(file)
	if file.err != nil {
		return Config{}, file.err
	}
	k := file.under(f.ggufName() + ".")
	k.shapes = shapes
	c := Config{Family: f.name, RMSEps: 1e-6, Rope: Rope{Theta: 10000, LocalTheta: f.defaults.Rope.LocalTheta}}
	if s := shapes[ggufEmbedding]; len(s) == 2 && s[0] <= MaxVocab {
		c.VocabSize = int(s[0])
	}
	c.Tied = !stores(k, ggufHead)
	c.AttentionBias = (f.has.attentionBias || f.has.qkvBias) && stores(k, "blk.0.attn_q.bias")
	c.MLPBias = f.has.mlpBias && stores(k, "blk.0.ffn_gate.bias")
	readArchitectureGGUF(k, &c)
	for _, t := range c.Tokens.keys() {
		*t.ids = tokensGGUF(file, c.VocabSize, t.gguf...)
	}
	refuseUnimplementedGGUF(k, c)
	splits := 1
	if file.integer("split.count", &splits); splits > 1 {
		file.fail("split.count is %d: merge the parts into one GGUF file first", splits)
	}
	if k.fold(file); k.err != nil {
		return Config{}, k.err
	}
	if ropeFactors != nil || f.gguf.fraction {
		if err := f.ropeFactors(ropeFactors, &c); err != nil {
			return Config{}, fmt.Errorf("tensor %s: %w", GGUFRopeFactors, err)
		}
	}
	return c, c.Validate()
}

// familyGGUF returns the family of a file with this metadata.
func familyGGUF(k *keys) *family {
	var name string
	k.text("general.architecture", &name)
	var known []string
	for _, n := range Families() {
		f := families[n]
		if f.gguf == nil {
			continue
		}
		if f.ggufName() == name && (f.gguf.fits == nil || f.gguf.fits(k)) {
			return f
		}
		known = append(known, f.ggufName())
	}
	k.fail("general.architecture %q is not supported: %s", strictjson.Brief(name), supported(known))
	return nil
}

// tokensGGUF collects the ids of several special tokens. Ids outside the vocabulary stand for absent tokens and are ignored.
func tokensGGUF(k *keys, vocab int, names ...string) (ids []int32) {
	for _, name := range names {
		id := int64(-1)
		typed(k, "tokenizer.ggml."+name+"_token_id", "an integer", &id)
		if id >= 0 && id < int64(vocab) && !slices.Contains(ids, int32(id)) {
			ids = append(ids, int32(id))
		}
	}
	return ids
}

// ggufName returns general.architecture. The architecture's keys begin with it.
func (f *family) ggufName() string { return cmp.Or(f.gguf.name, f.name) }

// stores reports whether a GGUF file has a tensor.
func stores(k *keys, name string) bool { _, ok := k.shapes[name]; return ok }

func readArchitectureGGUF(k *keys, c *Config) {
	rows := c.VocabSize
	if f := families[c.Family]; f.has.gatedDelta && f.defaults.Mixture != nil {
		c.FFN = f.defaults.FFN // no layer has this MLP
	}
	k.read(baseSettings(c))
	if c.VocabSize != rows {
		k.fail("vocab_size is %d, token_embd.weight has %d rows", c.VocabSize, rows)
	}
	c.KVHeads, c.HeadDim = c.Heads, c.Hidden/max(c.Heads, 1)
	k.read(headSettings(c))
	ropeGGUF(k, c)
	if HasExperts(c.Family) {
		expertsGGUF(k, c)
	}
	if read := families[c.Family].gguf.read; read != nil {
		read(k, c)
	}
}

// expertsGGUF reads a mixture of experts. ggml divides the weights of chosen experts by their sum, except in qwen2moe.
func expertsGGUF(k *keys, c *Config) {
	f := families[c.Family]
	c.Mixture = &Mixture{Normalise: true, Step: 1}
	if f.sharedExpert() && !f.has.gatedDelta {
		c.Mixture.Shared = c.FFN
	}
	k.read(c.Mixture.settings(f))
}

// refuseUnimplementedGGUF refuses metadata that would change the forward pass in a way that is not implemented.
func refuseUnimplementedGGUF(k *keys, c Config) {
	for suffix, dim := range map[string]int{"": cmp.Or(c.ByLayer.orZero().GlobalHeadDim, c.HeadDim), "_swa": c.HeadDim} {
		width := dim
		k.integer("attention.value_length"+suffix, &width)
		if width != dim {
			k.fail("attention.value_length%s is %d: must equal the head dimension %d", suffix, width, dim)
		}
	}
	experts, groups, causal := 0, 0, true
	k.integer("expert_count", &experts)
	k.integer("expert_group_count", &groups)
	k.boolean("attention.causal", &causal)
	if experts > 0 && c.Mixture == nil {
		k.fail("expert_count is %d: the architecture has no mixtures of experts", experts)
	}
	if groups > 1 {
		k.fail("expert_group_count is %d: experts are chosen from all, not from the best groups", groups)
	}
	if !causal {
		k.fail("attention.causal is false: bidirectional attention is not supported")
	}
}

// byLayerGGUF reads a number for each layer, or one for all layers. It returns nil if the key is absent.
func byLayerGGUF(k *keys, key string, layers int) []int {
	if !k.has(key) {
		return nil
	}
	list, isList := k.values[key].([]int64)
	if !isList {
		one := 0
		k.integer(key, &one)
		return slices.Repeat([]int{one}, boundedLayers(layers))
	}
	if len(list) != boundedLayers(layers) {
		k.fail("%s lists %d layers, but the model has %d", key, len(list), layers)
		return nil
	}
	return k.integers(key)
}

// windowsGGUF reads which layers have a window: those of a pattern or, without one, all except every n-th.
func windowsGGUF(k *keys, n int, c *Config) {
	window := 0
	k.integer("attention.sliding_window", &window)
	slides := slidingPatternGGUF(k, "attention.sliding_window_pattern", &n, c.Layers)
	if window == 0 {
		return
	}
	slide(&keys{}, c, window, func(i int) bool {
		if slides != nil {
			return slides[i]
		}
		return n == 0 || i%n < n-1
	})
}

// writeWindowGGUF writes the window. Readers know by the architecture which layers have it.
func writeWindowGGUF(c Config, set func(key string, value any)) {
	if c.Windows != nil {
		set("attention.sliding_window", c.Windows.size())
	}
}
