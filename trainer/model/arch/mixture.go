package arch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Mixture is a mixture of experts that replaces the MLP: for each token, a router chooses PerToken of Experts SwiGLU MLPs.
type Mixture struct {
	Experts   int  // num_experts
	PerToken  int  // num_experts_per_tok
	FFN       int  // moe_intermediate_size: of each expert
	Normalise bool // norm_topk_prob: the weights of the chosen experts are divided by their sum
	// shared_expert_intermediate_size: width of an expert for all tokens, which has a sigmoid gate; 0: the family has no such expert.
	Shared int

	// A layer has experts if its index is not in Dense (mlp_only_layers) and its index + 1 is a multiple of Step
	// (decoder_sparse_step). Other layers have an MLP of size Config.FFN.
	Dense []int
	Step  int

	Sigmoid *SigmoidRouter // nil: weights are softmaxes of the router's logits
}

// SigmoidRouter is a router whose weights are the sigmoids of its logits.
type SigmoidRouter struct {
	Bias  bool    // use_expert_bias: a constant number for each expert is added to its sigmoid for the choice, not for the weight
	Scale float64 // routed_scaling_factor: the weights are multiplied by it
}

// String returns the settings, for errors.
func (s *SigmoidRouter) String() string { return fmt.Sprintf("{bias %v, scale %g}", s.Bias, s.Scale) }

// Limits as in config.go; maxPerToken is the limit of the kernels.
const (
	maxExperts    = 1 << 12
	maxPerToken   = 64
	maxExpertSize = 1 << 36 // elements of one projection of all experts
	maxAllExperts = 1 << 17 // experts of all layers; each has tensors with names of their own
)

// HasExperts reports whether the models of a family are mixtures of experts.
func HasExperts(family string) bool {
	f := families[family]
	return f != nil && f.defaults.Mixture != nil
}

// HasExperts reports whether a layer has a mixture of experts.
func (c Config) HasExperts(layer int) bool {
	m := c.Mixture
	return m != nil && (layer+1)%m.Step == 0 && !slices.Contains(m.Dense, layer)
}

// ExpertsBesideMLP reports whether each layer has both a dense MLP and experts, and norms after them.
func (c Config) ExpertsBesideMLP() bool { return c.Mixture != nil && families[c.Family].expertsBeside }

// DividesExperts reports whether ranks that hold shares of a model compute their own experts only. It is false if a norm follows the
// experts: then each rank computes all experts of a layer.
func (c Config) DividesExperts() bool { return c.Mixture != nil && !c.ExpertsBesideMLP() }

// RoutedLayers returns the number of layers that have a mixture of experts.
func (c Config) RoutedLayers() (n int) {
	for i := range c.Layers {
		if c.HasExperts(i) {
			n++
		}
	}
	return n
}

// RouteWidth returns the number of experts that a token passes through, added up over all layers.
func (c Config) RouteWidth() int {
	if c.Mixture == nil {
		return 0
	}
	return c.RoutedLayers() * c.Mixture.PerToken
}

// CheckRoutes returns an error if there are recorded experts for more than the given number of tokens, or experts that the
// model does not have. routes may be empty.
func (c Config) CheckRoutes(routes []uint16, tokens int) error {
	width := c.RouteWidth()
	if len(routes) == 0 {
		return nil
	}
	if width == 0 || len(routes)%width != 0 || len(routes)/width > tokens {
		return fmt.Errorf("%d recorded experts do not fit %d tokens with %d experts each", len(routes), tokens, width)
	}
	for i, e := range routes {
		if int(e) >= c.Mixture.Experts {
			return fmt.Errorf("expert %d of token %d: the model has only %d experts", e, i/width, c.Mixture.Experts)
		}
	}
	return nil
}

func (c Config) validateMixture(f *family) error {
	m := c.Mixture
	if has := f.defaults.Mixture != nil; has != (m != nil) && !f.expertsBeside {
		return fmt.Errorf("model_type %s with a mixture of experts is %v, but for this family it must be %v", f.name, m != nil, has)
	}
	if m == nil {
		return nil
	}
	switch {
	case f.sharedExpert != (m.Shared > 0):
		return fmt.Errorf("shared_expert_intermediate_size is %d in model_type %s", m.Shared, f.name)
	case m.Shared < 0 || m.Shared > maxFFN:
		return fmt.Errorf("shared_expert_intermediate_size is %d: must be 1 to %d", m.Shared, maxFFN)
	case f.expertsBeside && (m.Step != 1 || m.Dense != nil || !m.Normalise):
		return fmt.Errorf("model_type %s has experts in all layers, with normalised weights", f.name)
	case f.expertsEverywhere && (m.Step != 1 || len(m.Dense) > 0 || !m.Normalise):
		return fmt.Errorf("decoder_sparse_step, mlp_only_layers or norm_topk_prob: model_type %s has experts in all layers, with normalised weights", f.name)
	case f.expertsAlone && (m.FFN != c.FFN || m.Step != 1 || m.Dense != nil || !m.Normalise):
		return fmt.Errorf("model_type %s has experts of intermediate_size %d in all layers, with normalised weights", f.name, c.FFN)
	}
	if err := m.validateSigmoid(f); err != nil {
		return err
	}
	perToken := "num_experts_per_tok"
	if f.expertsBeside {
		perToken = "top_k_experts"
	}
	err := validSizes(
		size{"num_experts", m.Experts, maxExperts},
		size{perToken, m.PerToken, min(m.Experts, maxPerToken)},
		size{"moe_intermediate_size", m.FFN, maxFFN},
		size{"decoder_sparse_step", m.Step, maxLayers},
	)
	if err != nil {
		return err
	}
	for _, layer := range m.Dense {
		if layer < 0 || layer >= c.Layers {
			return fmt.Errorf("mlp_only_layers lists %d: the layers are 0 to %d", layer, c.Layers-1)
		}
	}
	if size := int64(m.Experts) * int64(m.FFN) * int64(c.Hidden); size > maxExpertSize {
		return fmt.Errorf("num_experts %d × moe_intermediate_size %d × hidden_size %d is %d: must be at most %d", m.Experts, m.FFN, c.Hidden, size, maxExpertSize)
	}
	if n := int64(c.RoutedLayers()) * int64(m.Experts); n > maxAllExperts {
		return fmt.Errorf("%d layers of %d experts are %d: must be at most %d", c.RoutedLayers(), m.Experts, n, maxAllExperts)
	}
	if c.RoutedLayers() == 0 {
		return fmt.Errorf("mlp_only_layers and decoder_sparse_step %d leave no layer with experts", m.Step)
	}
	return nil
}

// mixture reads the keys of a mixture of experts. Both names of the number of experts are in use.
func (k *keys) mixture(f *family, c *Config) {
	m := *f.defaults.Mixture
	c.Mixture = &m
	k.integer("num_experts", &m.Experts)
	named := m.Experts
	k.integer("num_local_experts", &m.Experts)
	if k.has("num_experts") && named != m.Experts {
		k.fail("num_experts is %d but num_local_experts is %d", named, m.Experts)
	}
	k.integer("num_experts_per_tok", &m.PerToken)
	if f.expertsAlone {
		m.FFN = c.FFN
		return
	}
	k.integer("moe_intermediate_size", &m.FFN)
	k.boolean("norm_topk_prob", &m.Normalise)
	if f.sigmoidRouter() {
		k.sigmoidRouter(&m, c)
		return
	}
	k.integer("decoder_sparse_step", &m.Step)
	m.Dense = k.integers("mlp_only_layers")
	if f.sharedExpert {
		k.integer("shared_expert_intermediate_size", &m.Shared)
	}
}

// sigmoidRouter reads the keys of a mixture with a SigmoidRouter, whose first layers are dense.
func (k *keys) sigmoidRouter(m *Mixture, c *Config) {
	s, dense := *m.Sigmoid, 2
	m.Sigmoid = &s
	k.integer("num_dense_layers", &dense)
	k.boolean("use_expert_bias", &s.Bias)
	k.float("routed_scaling_factor", &s.Scale)
	if dense < 0 || dense >= c.Layers {
		k.fail("num_dense_layers is %d: must be 0 to %d, so that a layer has experts", dense, c.Layers-1)
		return
	}
	m.Dense = nil
	for i := range min(dense, maxLayers) {
		m.Dense = append(m.Dense, i)
	}
}

// sigmoidRouter reports whether the mixtures of the family have a SigmoidRouter.
func (f *family) sigmoidRouter() bool {
	return f.defaults.Mixture != nil && f.defaults.Mixture.Sigmoid != nil
}

// validateSigmoid checks a mixture's SigmoidRouter, and the layers without experts in families that have one.
func (m *Mixture) validateSigmoid(f *family) error {
	s := m.Sigmoid
	switch {
	case f.sigmoidRouter() != (s != nil):
		return fmt.Errorf("routed_scaling_factor: model_type %s with weights that are sigmoids is %v, but it must be %v", f.name, s != nil, f.sigmoidRouter())
	case s == nil:
		return nil
	case !positiveFinite(s.Scale):
		return fmt.Errorf("routed_scaling_factor is %g: must be positive and finite", s.Scale)
	case m.Step != 1:
		return fmt.Errorf("decoder_sparse_step is %d: model_type %s does not have this key", m.Step, f.name)
	}
	for i, layer := range m.Dense {
		if layer != i {
			return fmt.Errorf("num_dense_layers: layers %v have no experts, but in model_type %s only the first layers are dense", m.Dense, f.name)
		}
	}
	return nil
}

// choiceBias adds the constant numbers that a SigmoidRouter adds for the choice.
func (l *layer) choiceBias(m *Mixture, module string) {
	if !m.Sigmoid.Bias {
		return
	}
	l.add(ChoiceBiasLeaf, Bias, Tensor{Name: fmt.Sprintf("model.layers.%d.%s.expert_bias", l.index, module),
		GGUF: fmt.Sprintf("blk.%d.exp_probs_b.bias", l.index), Shape: []int64{int64(m.Experts)}})
}

// ChoiceBiasLeaf is the name within a layer of the leaf with the bias of a SigmoidRouter.
const ChoiceBiasLeaf = "choice_bias"

// besideExperts reads the keys of experts beside a dense MLP.
func (k *keys) besideExperts(c *Config) {
	enabled := false
	k.booleanOrNull("enable_moe_block", &enabled)
	if !enabled {
		return
	}
	c.Mixture = &Mixture{Normalise: true, Step: 1}
	k.require("num_experts", "top_k_experts", "moe_intermediate_size")
	k.integer("num_experts", &c.Mixture.Experts)
	k.integer("top_k_experts", &c.Mixture.PerToken)
	k.integer("moe_intermediate_size", &c.Mixture.FFN)
}

// keys writes the keys that mixture and besideExperts read.
func (m *Mixture) keys(f *family) map[string]any {
	if f.expertsBeside {
		return map[string]any{"enable_moe_block": true, "num_experts": m.Experts, "top_k_experts": m.PerToken, "moe_intermediate_size": m.FFN}
	}
	object := map[string]any{"num_experts": m.Experts, "num_local_experts": m.Experts, "num_experts_per_tok": m.PerToken}
	if f.expertsAlone {
		return object
	}
	if s := m.Sigmoid; s != nil {
		maps.Copy(object, map[string]any{"moe_intermediate_size": m.FFN, "norm_topk_prob": m.Normalise, "num_dense_layers": len(m.Dense),
			"use_expert_bias": s.Bias, "routed_scaling_factor": decimal(s.Scale)})
		return object
	}
	dense := m.Dense
	if dense == nil {
		dense = []int{}
	}
	maps.Copy(object, map[string]any{"moe_intermediate_size": m.FFN, "norm_topk_prob": m.Normalise, "decoder_sparse_step": m.Step, "mlp_only_layers": dense})
	if f.sharedExpert {
		object["shared_expert_intermediate_size"] = m.Shared
	}
	return object
}

// expertNames holds the names, within a layer, of a router, of the experts, and of an expert's projections.
type expertNames struct {
	router, experts, gate, up, down string
	fused                           string // the module of fused experts; "": mlp.experts
	together                        bool   // GGUF files store gates and ups of all experts as one tensor
	always                          bool   // see Fused
	interleaved                     bool   // always fused and transposed, with rows of gate and up in turn
}

var mlpExperts = expertNames{router: "mlp.gate", experts: "mlp.experts", gate: "gate_proj", up: "up_proj", down: "down_proj"}

// besideExperts are the names of Gemma 4.
var besideExperts = expertNames{router: "router.proj", experts: "experts", gate: "gate_proj", up: "up_proj", down: "down_proj", fused: "experts", together: true, always: true}

// experts adds a router and a gated MLP for each expert, all of them with biases or all without. The experts are stacked in
// two leaves: one for gate and up, with an expert's gate before its up, and one for down.
func (l *layer) experts(m *Mixture, names expertNames, bias bool) {
	l.linear("router", Matrix, l.c.Hidden, module{name: names.router, gguf: "ffn_gate_inp", rows: m.Experts, bias: bias})
	ffn, hidden := int64(m.FFN), int64(l.c.Hidden)
	within := func(name string, rows, row, step int64) Fused {
		return Fused{cmp.Or(names.fused, "mlp.experts") + "." + name, rows, row, step, names.always || names.interleaved, names.interleaved}
	}
	gate, up := within("gate_up_proj", 2*ffn, 0, 1), within("gate_up_proj", 2*ffn, ffn, 1)
	if names.interleaved {
		gate, up = within("gate_up_proj", 2*ffn, 0, 2), within("gate_up_proj", 2*ffn, 1, 2)
	}
	gateName, upName := "gate", "up" // in GGUF files
	if names.together {
		gateName, upName = "gate_up", "gate_up"
	}
	var gateUp, down []module
	for e := range m.Experts {
		// A module of this expert; other files store the modules of all experts as one tensor.
		of := func(name, gguf string, rows int, fused Fused) module {
			return module{name: fmt.Sprintf("%s.%d.%s", names.experts, e, name), gguf: "ffn_" + gguf + "_exps", rows: rows, bias: bias, stack: m.Experts, index: e, fused: fused}
		}
		gateUp = append(gateUp, of(names.gate, gateName, m.FFN, gate), of(names.up, upName, m.FFN, up))
		down = append(down, of(names.down, "down", l.c.Hidden, within("down_proj", hidden, 0, 1)))
	}
	first := len(l.layout.Leaves)
	l.linear("experts_gate_up", Matrix, l.c.Hidden, gateUp...)
	l.linear("experts_down", Residual, m.FFN, down...)
	if !l.c.DividesExperts() {
		return
	}
	for i := range l.layout.Leaves[first:] {
		l.layout.Leaves[first+i].Experts = m.Experts
	}
}

// expertsBesideMLP adds a router, gated MLPs of experts, norms around them and after the dense MLP, and scales.
func (l *layer) expertsBesideMLP(m *Mixture) {
	l.norm("dense_norm", "post_feedforward_layernorm_1", "post_ffw_norm_1", l.c.Hidden)
	l.norm("experts_norm", "pre_feedforward_layernorm_2", "pre_ffw_norm_2", l.c.Hidden)
	l.norm("routed_norm", "post_feedforward_layernorm_2", "post_ffw_norm_2", l.c.Hidden)
	l.add("router_norm", Norm, l.tensor(module{name: "router", gguf: "ffn_gate_inp", rows: l.c.Hidden}, "scale", 0))
	scales := l.tensor(module{name: "router", rows: m.Experts}, "per_expert_scale", 0)
	scales.GGUF = fmt.Sprintf("blk.%d.ffn_down_exps.scale", l.index)
	l.add("expert_scales", Norm, scales)
	l.experts(m, besideExperts, false)
}

// sharedExpert adds a SwiGLU MLP for all tokens, and its gate.
func (l *layer) sharedExpert(m *Mixture) {
	l.linear("shared_gate_up", Matrix, l.c.Hidden, module{name: "mlp.shared_expert.gate_proj", gguf: "ffn_gate_shexp", rows: m.Shared},
		module{name: "mlp.shared_expert.up_proj", gguf: "ffn_up_shexp", rows: m.Shared})
	l.linear("shared_down", Residual, m.Shared, module{name: "mlp.shared_expert.down_proj", gguf: "ffn_down_shexp", rows: l.c.Hidden})
	l.linear("shared_gate", Matrix, l.c.Hidden, module{name: "mlp.shared_expert_gate", gguf: "ffn_gate_inp_shexp", rows: 1})
}
