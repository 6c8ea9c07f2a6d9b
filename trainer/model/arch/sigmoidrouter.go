package arch

import "fmt"

// SigmoidRouter is a router whose weights are the sigmoids of its logits.
type SigmoidRouter struct {
	Bias  bool    // use_expert_bias: experts are chosen by their sigmoids plus a constant for each expert; weights do not include it
	Scale float64 // routed_scaling_factor: the weights are multiplied by it
}

// String returns the settings, for errors.
func (s *SigmoidRouter) String() string { return fmt.Sprintf("{bias %v, scale %g}", s.Bias, s.Scale) }

// sharedExpert reports whether the mixtures of the family have an expert for all tokens.
func (f *family) sharedExpert() bool {
	return f.defaults.Mixture != nil && f.defaults.Mixture.Shared > 0
}

// sigmoidRouter reports whether the mixtures of the family have a SigmoidRouter.
func (f *family) sigmoidRouter() bool {
	return f.defaults.Mixture != nil && f.defaults.Mixture.Sigmoid != nil
}

// readDenseLayers reads the number of layers before the first one with experts.
func readDenseLayers(k *keys, m *Mixture, layers int) {
	dense := 2
	k.integer("num_dense_layers", &dense)
	if dense < 0 || dense >= layers {
		k.fail("num_dense_layers is %d: must be 0 to %d, so that a layer has experts", dense, layers-1)
		return
	}
	m.Dense = nil
	for i := range min(dense, maxLayers) {
		m.Dense = append(m.Dense, i)
	}
}

// validateSigmoid checks a mixture's SigmoidRouter, and the layers without experts in families that have one.
func (m *Mixture) validateSigmoid(f *family) error {
	s := m.Sigmoid
	switch {
	case f.sigmoidRouter() != (s != nil):
		return fmt.Errorf("routed_scaling_factor: model_type %s with weights that are sigmoids is %v, but it must be %v", f.name, s != nil, f.sigmoidRouter())
	case s == nil:
		return nil
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
