package arch

import (
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

	fits func(m *metadata) bool // reports whether a file belongs to this family, if two families share the architecture's name; may be nil

	read func(m *metadata, prefix string, c *Config) // reads or refuses the architecture's own keys, which begin with prefix; may be nil

	write func(c Config, set func(key string, value any)) // the same keys, without prefix; may be nil
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

// FromGGUF derives the architecture from a file's metadata, from the shapes of its tensors (rows first, by GGUF name), and
// from the values of GGUFRopeFactors (nil if the file has no such tensor). Metadata values are string, bool,
// int64, uint64, float64 or slices.
func FromGGUF(meta map[string]any, shapes map[string][]int64, ropeFactors []float32) (Config, error) {
	m := &metadata{values: meta}
	f := m.family()
	if m.err != nil {
		return Config{}, m.err
	}
	c := Config{Family: f.name, RMSEps: 1e-6, RopeTheta: 10000, LocalTheta: f.defaults.LocalTheta}
	if s := shapes[ggufEmbedding]; len(s) == 2 && s[0] <= MaxVocab {
		c.VocabSize = int(s[0])
	}
	has := func(name string) bool { _, ok := shapes[name]; return ok }
	c.Tied = !has(ggufHead)
	c.AttentionBias = f.attentionBias && has("blk.0.attn_q.bias")
	c.MLPBias = f.mlpBias && has("blk.0.ffn_gate.bias")
	m.architecture(&c)
	m.refuseUnimplemented(c)
	if m.err != nil {
		return Config{}, m.err
	}
	if ropeFactors != nil {
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
func (f *family) ggufName() string {
	if f.gguf.name != "" {
		return f.gguf.name
	}
	return f.name
}

func (m *metadata) architecture(c *Config) {
	arch := families[c.Family].ggufName() + "."
	m.require(arch+"embedding_length", arch+"block_count", arch+"attention.head_count", arch+"feed_forward_length", arch+"context_length")
	m.integer(arch+"embedding_length", &c.Hidden)
	m.integer(arch+"block_count", &c.Layers)
	m.integer(arch+"attention.head_count", &c.Heads)
	m.integer(arch+"feed_forward_length", &c.FFN)
	m.integer(arch+"context_length", &c.MaxPosition)
	m.float(arch+"attention.layer_norm_rms_epsilon", &c.RMSEps)
	c.KVHeads = c.Heads
	m.integer(arch+"attention.head_count_kv", &c.KVHeads)
	if c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	m.integer(arch+"attention.key_length", &c.HeadDim)
	m.rope(arch+"rope.", c)
	if read := families[c.Family].gguf.read; read != nil {
		read(m, arch, c)
	}
	if HasExperts(c.Family) {
		m.require(arch+"expert_count", arch+"expert_used_count", arch+"expert_feed_forward_length")
		c.Mixture = &Mixture{Normalise: true, Step: 1} // ggml computes every model of this architecture in this way
		m.integer(arch+"expert_count", &c.Mixture.Experts)
		m.integer(arch+"expert_used_count", &c.Mixture.PerToken)
		m.integer(arch+"expert_feed_forward_length", &c.Mixture.FFN)
	}
	c.BOS = m.tokens(c.VocabSize, "tokenizer.ggml.bos_token_id")
	c.EOS = m.tokens(c.VocabSize, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
	c.Pad = m.tokens(c.VocabSize, "tokenizer.ggml.padding_token_id")
}

// refuseUnimplemented refuses metadata that would change the forward pass in a way that is not implemented.
func (m *metadata) refuseUnimplemented(c Config) {
	arch := families[c.Family].ggufName() + "."
	width := c.HeadDim
	m.integer(arch+"attention.value_length", &width)
	if width != c.HeadDim {
		m.fail("%sattention.value_length is %d: must equal the head dimension %d", arch, width, c.HeadDim)
	}
	vocab, experts, splits := c.VocabSize, 0, 1
	m.integer(arch+"vocab_size", &vocab)
	m.integer(arch+"expert_count", &experts)
	m.integer("split.count", &splits)
	if vocab != c.VocabSize {
		m.fail("%svocab_size is %d, token_embd.weight has %d rows", arch, vocab, c.VocabSize)
	}
	if experts > 0 && c.Mixture == nil {
		m.fail("%sexpert_count is %d: the architecture has no mixtures of experts", arch, experts)
	}
	if splits > 1 {
		m.fail("split.count is %d: merge the parts into one GGUF file first", splits)
	}
}

// metadata reads typed metadata. It keeps the first error. If a key is absent, the target keeps its value.
type metadata struct {
	values map[string]any
	err    error
}

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
	if !lookup(m, key, &wide) {
		return
	}
	if wide < 0 || wide > math.MaxInt32 {
		m.fail("%s is %d: must be 0 to 2^31-1", key, wide)
		return
	}
	*to = int(wide)
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
