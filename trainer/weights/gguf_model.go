package weights

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// openGGUF maps a GGUF file and presents it under Hugging Face names and layout.
func (s *Source) openGGUF() error {
	m, err := mapFile(s.path)
	if err != nil {
		return err
	}
	s.maps = append(s.maps, m)
	var tensors []ggufTensor
	err = guardMapped(func() (err error) {
		s.gguf, tensors, err = parseGGUF(m.data)
		return err
	})
	if err != nil {
		return err
	}
	if s.config, err = ggufConfig(s.gguf, tensors); err != nil {
		return err
	}
	for _, t := range tensors {
		if t.name == ropeFactors { // now in Config.RopeScaling
			continue
		}
		if err := s.addGGUF(t); err != nil {
			return fmt.Errorf("tensor %s: %w", t.name, err)
		}
	}
	return nil
}

func (s *Source) addGGUF(g ggufTensor) error {
	name, ok := hfName(g.name, s.config.Layers)
	if !ok {
		return fmt.Errorf("unexpected: a %s model has none of that name", s.config.Family)
	}
	t, err := newTensor(g.shape, g.dtype, g.data)
	if err != nil {
		return err
	}
	if s.config.Family == Llama && (strings.Contains(name, ".q_proj.") || strings.Contains(name, ".k_proj.")) {
		if count, _ := rows(t.shape); count%int64(s.config.HeadDim) != 0 {
			return fmt.Errorf("%d rows are not whole heads of %d", count, s.config.HeadDim)
		}
		t.ropePairs = int64(s.config.HeadDim) / 2
	}
	return s.add(s.path, name, t)
}

const ropeFactors = "rope_freqs.weight"

var ggufGlobalNames = map[string]string{
	"token_embd.weight":  "model.embed_tokens.weight",
	"output_norm.weight": "model.norm.weight",
	"output.weight":      "lm_head.weight",
}

var ggufLayerNames = map[string]string{
	"attn_norm":   "input_layernorm",
	"attn_q":      "self_attn.q_proj",
	"attn_k":      "self_attn.k_proj",
	"attn_v":      "self_attn.v_proj",
	"attn_output": "self_attn.o_proj",
	"attn_q_norm": "self_attn.q_norm",
	"attn_k_norm": "self_attn.k_norm",
	"ffn_norm":    "post_attention_layernorm",
	"ffn_gate":    "mlp.gate_proj",
	"ffn_up":      "mlp.up_proj",
	"ffn_down":    "mlp.down_proj",
}

// hfName translates blk.3.attn_q.weight to model.layers.3.self_attn.q_proj.weight, and so on.
func hfName(gguf string, layers int) (string, bool) {
	if name, ok := ggufGlobalNames[gguf]; ok {
		return name, true
	}
	parts := strings.Split(gguf, ".")
	if len(parts) != 4 || parts[0] != "blk" || parts[3] != "weight" && parts[3] != "bias" {
		return "", false
	}
	layer, err := strconv.Atoi(parts[1])
	module, ok := ggufLayerNames[parts[2]]
	if err != nil || !ok || layer < 0 || layer >= layers || strconv.Itoa(layer) != parts[1] {
		return "", false
	}
	return fmt.Sprintf("model.layers.%d.%s.%s", layer, module, parts[3]), true
}

// ggufConfig derives the architecture from metadata, and from which tensors there are.
func ggufConfig(meta map[string]any, tensors []ggufTensor) (Config, error) {
	m := &ggufMeta{values: meta}
	var family string
	m.text("general.architecture", &family)
	if m.err == nil && family != Llama && family != Qwen2 && family != Qwen3 {
		m.fail("general.architecture %q is not supported: use llama, qwen2 or qwen3", brief(family))
	}
	if m.err != nil {
		return Config{}, m.err
	}
	c := Config{Family: family, RMSEps: 1e-6, RopeTheta: 10000, QKNorm: family == Qwen3, Tied: true, AttentionBias: family == Qwen2}
	var factors *ggufTensor
	for i, t := range tensors {
		switch t.name {
		case "token_embd.weight":
			if len(t.shape) == 2 && t.shape[0] <= maxVocab {
				c.VocabSize = int(t.shape[0])
			}
		case "output.weight":
			c.Tied = false
		case "blk.0.attn_q.bias":
			c.AttentionBias = true
		case "blk.0.ffn_gate.bias":
			c.MLPBias = true
		case ropeFactors:
			factors = &tensors[i]
		}
	}
	m.architecture(&c)
	m.refuseUnimplemented(c)
	if m.err != nil {
		return Config{}, m.err
	}
	if factors != nil {
		var err error
		if c.RopeScaling, err = ropeFromFactors(*factors, c); err != nil {
			return Config{}, fmt.Errorf("tensor %s: %w", ropeFactors, err)
		}
	}
	return c, c.Validate()
}

func (m *ggufMeta) architecture(c *Config) {
	arch := c.Family + "."
	m.require(arch+"embedding_length", arch+"block_count", arch+"attention.head_count", arch+"feed_forward_length", arch+"context_length")
	m.integer(arch+"embedding_length", &c.Hidden)
	m.integer(arch+"block_count", &c.Layers)
	m.integer(arch+"attention.head_count", &c.Heads)
	m.integer(arch+"feed_forward_length", &c.FFN)
	m.integer(arch+"context_length", &c.MaxPosition)
	m.float(arch+"attention.layer_norm_rms_epsilon", &c.RMSEps)
	m.float(arch+"rope.freq_base", &c.RopeTheta)
	c.KVHeads = c.Heads
	m.integer(arch+"attention.head_count_kv", &c.KVHeads)
	if c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	m.integer(arch+"attention.key_length", &c.HeadDim)
	c.BOS = m.tokens(c.VocabSize, "tokenizer.ggml.bos_token_id")
	c.EOS = m.tokens(c.VocabSize, "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
	c.Pad = m.tokens(c.VocabSize, "tokenizer.ggml.padding_token_id")
}

// refuseUnimplemented reports metadata that changes the forward pass in ways the trainer does not implement.
func (m *ggufMeta) refuseUnimplemented(c Config) {
	arch := c.Family + "."
	for _, key := range []string{arch + "attention.value_length", arch + "rope.dimension_count"} {
		n := c.HeadDim
		m.integer(key, &n)
		if n != c.HeadDim {
			m.fail("%s is %d: must equal the head dimension %d", key, n, c.HeadDim)
		}
	}
	vocab, experts, splits := c.VocabSize, 0, 1
	m.integer(arch+"vocab_size", &vocab)
	m.integer(arch+"expert_count", &experts)
	m.integer("split.count", &splits)
	if vocab != c.VocabSize {
		m.fail("%svocab_size is %d, token_embd.weight has %d rows", arch, vocab, c.VocabSize)
	}
	if experts > 0 {
		m.fail("%sexpert_count is %d: mixtures of experts are not supported", arch, experts)
	}
	if splits > 1 {
		m.fail("split.count is %d: merge the parts into one GGUF file first", splits)
	}
	scaling, linear := "none", 1.0
	m.text(arch+"rope.scaling.type", &scaling)
	m.float(arch+"rope.scale_linear", &linear)
	if scaling != "none" || linear != 1 {
		m.fail("%srope.scaling.type %q (scale_linear %g) is not supported", arch, brief(scaling), linear)
	}
}

// ropeFromFactors recovers Llama 3.1's rope scaling from the divisors that GGUF stores in its place. Only
// factor varies between published models; the rest is checked against every divisor.
func ropeFromFactors(t ggufTensor, c Config) (*RopeLlama3, error) {
	if c.Family != Llama || t.dtype != F32 || !slices.Equal(t.shape, []int64{int64(c.HeadDim) / 2}) {
		return nil, fmt.Errorf("%v %s: expected %d F32 frequency factors of a llama model", t.shape, t.dtype, c.HeadDim/2)
	}
	factors := make([]float32, c.HeadDim/2)
	if err := guardMapped(func() error { decodeF32(factors, t.data); return nil }); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(factors, func(f float32) bool { return f != 1 }) {
		return nil, nil
	}
	scaling := &RopeLlama3{Factor: float64(slices.Max(factors)), LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxPosition: 8192}
	for i, f := range factors {
		frequency := math.Pow(c.RopeTheta, -2*float64(i)/float64(c.HeadDim))
		if want := 1 / scaling.InvFreqScale(frequency); !(math.Abs(float64(f)-want) <= 1e-4*want) {
			return nil, fmt.Errorf("factor %d is %g, not those of llama3 scaling over 8192 positions (%g)", i, f, want)
		}
	}
	return scaling, nil
}

// ggufMeta reads typed metadata; the first failure sticks, a target whose key is absent keeps its value.
type ggufMeta struct {
	values map[string]any
	err    error
}

func (m *ggufMeta) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf("metadata: "+format, args...)
	}
}

func (m *ggufMeta) require(names ...string) {
	for _, key := range names {
		if _, ok := m.values[key]; !ok {
			m.fail("%s is missing", key)
		}
	}
}

// lookup stores the value of key, if there is one, and fails if it has another type.
func lookup[T any](m *ggufMeta, key string, to *T) bool {
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

func (m *ggufMeta) text(key string, to *string) { lookup(m, key, to) }

func (m *ggufMeta) float(key string, to *float64) { lookup(m, key, to) }

func (m *ggufMeta) integer(key string, to *int) {
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

// tokens collects the ids under several keys; ids outside the vocabulary mark absent tokens.
func (m *ggufMeta) tokens(vocab int, names ...string) (ids []int32) {
	for _, key := range names {
		var id int64
		if lookup(m, key, &id) && id >= 0 && id < int64(vocab) && !slices.Contains(ids, int32(id)) {
			ids = append(ids, int32(id))
		}
	}
	return ids
}
