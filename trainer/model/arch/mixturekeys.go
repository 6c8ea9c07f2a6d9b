package arch

// readMixture reads the keys of a mixture of experts. Both names of the number of experts are in use.
func readMixture(k *keys, f *family, c *Config) {
	m := *f.defaults.Mixture
	c.Mixture = &m
	if m.Sigmoid != nil {
		s := *m.Sigmoid
		m.Sigmoid = &s
	}
	k.read(m.settings(f))
	named := m.Experts
	if k.integer("num_experts", &named); named != m.Experts {
		k.fail("num_experts is %d but num_local_experts is %d", named, m.Experts)
	}
	switch {
	case f.has.expertsAlone:
		m.FFN = c.FFN
	case f.sigmoidRouter():
		readDenseLayers(k, &m, c.Layers)
	default:
		m.Dense = k.integers("mlp_only_layers")
	}
}

// readBesideExperts reads the keys of experts beside a dense MLP.
func readBesideExperts(k *keys, c *Config) {
	enabled := false
	k.booleanOrNull("enable_moe_block", &enabled)
	if !enabled {
		return
	}
	c.Mixture = &Mixture{Normalise: true, Step: 1}
	k.require("num_experts", "top_k_experts", "moe_intermediate_size")
	k.read(c.Mixture.settings(families[c.Family]))
}

// settings lists the settings of a mixture of a family.
func (m *Mixture) settings(f *family) []setting {
	experts := setting{json: "num_experts", gguf: "expert_count", to: &m.Experts, most: maxExperts, required: true}
	perToken := setting{json: "num_experts_per_tok", gguf: "expert_used_count", to: &m.PerToken, most: min(m.Experts, maxPerToken), required: true}
	width := setting{json: "moe_intermediate_size", gguf: "expert_feed_forward_length", to: &m.FFN, most: maxFFN, required: true}
	otherName := setting{json: "num_local_experts", to: &m.Experts}
	switch {
	case f.has.byLayer:
		perToken.json = "top_k_experts"
		return []setting{experts, perToken, width}
	case f.has.expertsAlone:
		width.json, width.most = "", 0 // it is the width of the MLPs
		return []setting{experts, otherName, perToken, width}
	}
	all := []setting{experts, otherName, perToken, width, {json: "norm_topk_prob", to: &m.Normalise}}
	if s := m.Sigmoid; s != nil {
		return append(all, setting{json: "use_expert_bias", to: &s.Bias}, setting{json: "routed_scaling_factor", to: &s.Scale})
	}
	all = append(all, setting{json: "decoder_sparse_step", to: &m.Step, most: maxLayers})
	if f.sharedExpert() {
		all = append(all, setting{json: "shared_expert_intermediate_size", gguf: "expert_shared_feed_forward_length", to: &m.Shared, most: maxFFN,
			required: m.Shared == 0})
	}
	return all
}

// keys returns the keys of config.json that are not settings.
func (m *Mixture) keys(f *family) map[string]any {
	switch {
	case f.has.byLayer:
		return map[string]any{"enable_moe_block": true}
	case f.has.expertsAlone:
		return nil
	case m.Sigmoid != nil:
		return map[string]any{"num_dense_layers": len(m.Dense)}
	}
	return map[string]any{"mlp_only_layers": append([]int{}, m.Dense...)}
}
