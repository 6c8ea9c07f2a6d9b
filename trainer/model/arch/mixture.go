package arch

import (
	"fmt"
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

// ExpertsBesideMLP reports whether each layer has both a dense MLP and experts, and norms after them.
func (c Config) ExpertsBesideMLP() bool { return c.Mixture != nil && families[c.Family].has.byLayer }

// DividesExperts reports whether ranks that hold shares of a model compute their own experts only. It is false if a norm follows the
// experts: then each rank computes all experts of a layer.
func (c Config) DividesExperts() bool { return c.Mixture != nil && !c.ExpertsBesideMLP() }

// RoutedLayers returns the number of layers that have a mixture of experts.
func (c Config) RoutedLayers() (n int) {
	for i := range c.Layers {
		if c.Layer(i).HasExperts() {
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

func (m *Mixture) validate(c Config, f *family) error {
	if has := f.defaults.Mixture != nil; has != (m != nil) && !f.has.byLayer {
		return fmt.Errorf("model_type %s with a mixture of experts is %v, but for this family it must be %v", f.name, m != nil, has)
	}
	if m == nil {
		return nil
	}
	switch {
	case f.sharedExpert() != (m.Shared > 0):
		return fmt.Errorf("shared_expert_intermediate_size is %d in model_type %s", m.Shared, f.name)
	case (f.has.byLayer || f.has.gatedDelta) && (m.Step != 1 || len(m.Dense) > 0 || !m.Normalise):
		return fmt.Errorf("decoder_sparse_step, mlp_only_layers or norm_topk_prob: model_type %s has experts in all layers, with normalised weights", f.name)
	case f.has.expertsAlone && (m.FFN != c.FFN || m.Step != 1 || m.Dense != nil || !m.Normalise):
		return fmt.Errorf("model_type %s has experts of intermediate_size %d in all layers, with normalised weights", f.name, c.FFN)
	}
	if err := m.validateSigmoid(f); err != nil {
		return err
	}
	for _, layer := range m.Dense {
		if layer < 0 || layer >= c.Layers {
			return fmt.Errorf("mlp_only_layers lists %d: the layers are 0 to %d", layer, c.Layers-1)
		}
	}
	if size := int64(m.Experts) * int64(m.FFN) * int64(c.Hidden); size > maxExpertSize {
		return fmt.Errorf("num_experts %d × moe_intermediate_size %d × hidden_size %d is %d: must be at most %d",
			m.Experts, m.FFN, c.Hidden, size, maxExpertSize)
	}
	if n := int64(c.RoutedLayers()) * int64(m.Experts); n > maxAllExperts {
		return fmt.Errorf("%d layers of %d experts are %d: must be at most %d", c.RoutedLayers(), m.Experts, n, maxAllExperts)
	}
	if c.RoutedLayers() == 0 {
		return fmt.Errorf("mlp_only_layers and decoder_sparse_step %d leave no layer with experts", m.Step)
	}
	return nil
}
