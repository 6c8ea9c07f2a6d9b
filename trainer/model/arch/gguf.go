package arch

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// gguf describes the GGUF files of a family: general.architecture and the keys that begin with the family's name.
type gguf struct {
	name        string // of the architecture; "": the family's
	interleaved bool   // the two halves of each query and key head are interleaved row by row
	ropeFactors bool   // files may have GGUFRopeFactors, the divisors of Llama 3's scaling
	fraction    bool   // files have GGUFRopeFactors, which are 1 for planes that turn
	finalNorm   string // name of the norm after the layers; "": output_norm

	fits func(m *metadata) bool // reports whether a file belongs to this family, if two families share the architecture's name; may be nil

	read func(m *metadata, prefix string, c *Config) // reads or refuses the architecture's own keys, which begin with prefix; may be nil

	write func(c Config, set func(key string, value any)) // the same keys, without prefix; may be nil

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
	m := &metadata{values: meta, shapes: shapes}
	f := m.family()
	if m.err != nil {
		return Config{}, m.err
	}
	c := Config{Family: f.name, RMSEps: 1e-6, RopeTheta: 10000, LocalTheta: f.defaults.LocalTheta}
	if s := shapes[ggufEmbedding]; len(s) == 2 && s[0] <= MaxVocab {
		c.VocabSize = int(s[0])
	}
	c.Tied = !m.has(ggufHead)
	c.AttentionBias = (f.attentionBias || f.qkvBias) && m.has("blk.0.attn_q.bias")
	c.MLPBias = f.mlpBias && m.has("blk.0.ffn_gate.bias")
	m.architecture(&c)
	m.refuseUnimplemented(c)
	if m.err != nil {
		return Config{}, m.err
	}
	if ropeFactors != nil || f.gguf.fraction {
		if err := f.ropeFactors(ropeFactors, &c); err != nil {
			return Config{}, fmt.Errorf("tensor %s: %w", GGUFRopeFactors, err)
		}
	}
	return c, c.Validate()
}

func (m *metadata) family() *family {
	var name string
	m.text("general.architecture", &name)
	var known []string
	for _, n := range Families() {
		f := families[n]
		if f.gguf == nil {
			continue
		}
		if f.ggufName() == name && (f.gguf.fits == nil || f.gguf.fits(m)) {
			return f
		}
		known = append(known, f.ggufName())
	}
	m.fail("general.architecture %q is not supported: %s", strictjson.Brief(name), supported(known))
	return nil
}

// ggufName returns general.architecture. The architecture's keys begin with it.
func (f *family) ggufName() string { return cmp.Or(f.gguf.name, f.name) }

func (m *metadata) architecture(c *Config) {
	arch := families[c.Family].ggufName() + "."
	m.require(arch+"embedding_length", arch+"block_count", arch+"attention.head_count", arch+"context_length")
	if f := families[c.Family]; f.gatedDelta && f.defaults.Mixture != nil {
		c.FFN = f.defaults.FFN // no layer has this MLP
	} else {
		m.require(arch + "feed_forward_length")
	}
	m.integer(arch+"embedding_length", &c.Hidden)
	m.integer(arch+"block_count", &c.Layers)
	m.integer(arch+"attention.head_count", &c.Heads)
	m.first(arch+"feed_forward_length", &c.FFN)
	m.integer(arch+"context_length", &c.MaxPosition)
	m.float(arch+"attention.layer_norm_rms_epsilon", &c.RMSEps)
	c.KVHeads = c.Heads
	m.first(arch+"attention.head_count_kv", &c.KVHeads)
	if c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	m.integer(arch+"attention.key_length", &c.HeadDim)
	m.rope(arch+"rope.", c)
	if HasExperts(c.Family) {
		m.experts(arch, c)
	}
	if read := families[c.Family].gguf.read; read != nil {
		read(m, arch, c)
	}
	c.BOS = m.tokens(c.VocabSize, "tokenizer.ggml.bos_token_id")
	c.EOS = m.tokens(c.VocabSize, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
	c.Pad = m.tokens(c.VocabSize, "tokenizer.ggml.padding_token_id")
}

// experts reads a mixture of experts. ggml divides the weights of chosen experts by their sum, except in qwen2moe.
func (m *metadata) experts(prefix string, c *Config) {
	m.require(prefix+"expert_count", prefix+"expert_used_count", prefix+"expert_feed_forward_length")
	c.Mixture = &Mixture{Normalise: true, Step: 1}
	m.integer(prefix+"expert_count", &c.Mixture.Experts)
	m.integer(prefix+"expert_used_count", &c.Mixture.PerToken)
	m.integer(prefix+"expert_feed_forward_length", &c.Mixture.FFN)
}

// refuseUnimplemented refuses metadata that would change the forward pass in a way that is not implemented.
func (m *metadata) refuseUnimplemented(c Config) {
	arch := families[c.Family].ggufName() + "."
	for suffix, dim := range map[string]int{"": cmp.Or(c.settings().GlobalHeadDim, c.HeadDim), "_swa": c.HeadDim} {
		width := dim
		m.integer(arch+"attention.value_length"+suffix, &width)
		if width != dim {
			m.fail("%sattention.value_length%s is %d: must equal the head dimension %d", arch, suffix, width, dim)
		}
	}
	vocab, experts, groups, splits := c.VocabSize, 0, 0, 1
	m.integer(arch+"vocab_size", &vocab)
	m.integer(arch+"expert_count", &experts)
	m.integer(arch+"expert_group_count", &groups)
	m.integer("split.count", &splits)
	if vocab != c.VocabSize {
		m.fail("%svocab_size is %d, token_embd.weight has %d rows", arch, vocab, c.VocabSize)
	}
	if experts > 0 && c.Mixture == nil {
		m.fail("%sexpert_count is %d: the architecture has no mixtures of experts", arch, experts)
	}
	if groups > 1 {
		m.fail("%sexpert_group_count is %d: experts are chosen from all, not from the best groups", arch, groups)
	}
	causal := true
	if lookup(m, arch+"attention.causal", &causal); !causal {
		m.fail("%sattention.causal is false: bidirectional attention is not supported", arch)
	}
	if splits > 1 {
		m.fail("split.count is %d: merge the parts into one GGUF file first", splits)
	}
}

// metadata reads typed metadata. It keeps the first error. If a key is absent, the target keeps its value.
type metadata struct {
	values map[string]any
	shapes map[string][]int64 // of the file's tensors, by name
	err    error
}

// has reports whether the file has a tensor.
func (m *metadata) has(name string) bool { _, ok := m.shapes[name]; return ok }

func (m *metadata) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf("metadata: "+format, args...)
	}
}

func (m *metadata) require(names ...string) {
	for _, key := range names {
		if _, ok := m.values[key]; !ok {
			m.fail("%s is missing", key)
		}
	}
}

// lookup stores the value of key in to. An absent key is ignored; a value of another type is an error.
func lookup[T any](m *metadata, key string, to *T) bool {
	v, ok := m.values[key]
	if !ok {
		return false
	}
	typed, ok := v.(T)
	if !ok {
		m.fail("%s is a %T: must be a %T", key, v, *to)
		return false
	}
	*to = typed
	return true
}

func (m *metadata) text(key string, to *string) { lookup(m, key, to) }

func (m *metadata) float(key string, to *float64) { lookup(m, key, to) }

func (m *metadata) integer(key string, to *int) {
	var wide int64
	if lookup(m, key, &wide) {
		m.small(key, wide, to)
	}
}

func (m *metadata) small(key string, wide int64, to *int) {
	if wide < 0 || wide > math.MaxInt32 {
		m.fail("%s is %d: must be 0 to 2^31-1", key, wide)
		return
	}
	*to = int(wide)
}

// first reads a number, or the first one of a list with equal numbers. A family whose layers differ reads the others itself.
func (m *metadata) first(key string, to *int) {
	list, isList := m.values[key].([]int64)
	if !isList || len(list) == 0 {
		m.integer(key, to)
		return
	}
	m.small(key, list[0], to)
}

// byLayer reads a number for each layer, or one for all layers. It returns nil if the key is absent.
func (m *metadata) byLayer(key string, layers int) []int {
	list, isList := m.values[key].([]int64)
	if _, there := m.values[key]; !there {
		return nil
	}
	all := make([]int, boundedLayers(layers))
	if isList && len(list) != len(all) {
		m.fail("%s lists %d layers, but the model has %d", key, len(list), layers)
		return nil
	}
	for i := range all {
		if isList {
			m.small(key, list[i], &all[i])
		} else {
			m.integer(key, &all[i])
		}
	}
	return all
}

// windows reads which layers have a window: those of a pattern or, without one, all except every n-th.
func (m *metadata) windows(prefix string, n int, c *Config) {
	window := 0
	m.integer(prefix+"attention.sliding_window", &window)
	slides := m.slidingPattern(prefix+"attention.sliding_window_pattern", &n, c.Layers)
	if window == 0 {
		return
	}
	(&keys{}).slide(c, window, func(i int) bool {
		if slides != nil {
			return slides[i]
		}
		return n == 0 || i%n < n-1
	})
}

// writeWindowGGUF writes the window. Readers know by the architecture which layers have it.
func writeWindowGGUF(c Config, set func(key string, value any)) {
	if c.Windows != nil {
		set("attention.sliding_window", c.window())
	}
}

// tokens collects the ids of several keys. Ids outside the vocabulary stand for absent tokens and are ignored.
func (m *metadata) tokens(vocab int, names ...string) (ids []int32) {
	for _, key := range names {
		var id int64
		if lookup(m, key, &id) && id >= 0 && id < int64(vocab) && !slices.Contains(ids, int32(id)) {
			ids = append(ids, int32(id))
		}
	}
	return ids
}
