package arch

import "maps"

// readMixture reads the keys of a mixture of experts. Both names of the number of experts are in use.
func readMixture(k *keys, f *family, c *Config) {
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
		readSigmoidRouter(k, &m, c)
		return
	}
	k.integer("decoder_sparse_step", &m.Step)
	m.Dense = k.integers("mlp_only_layers")
	if f.sharedExpert() {
		k.integer("shared_expert_intermediate_size", &m.Shared)
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
	k.integer("num_experts", &c.Mixture.Experts)
	k.integer("top_k_experts", &c.Mixture.PerToken)
	k.integer("moe_intermediate_size", &c.Mixture.FFN)
}

// keys returns the keys that readMixture and readBesideExperts read.
func (m *Mixture) keys(f *family) map[string]any {
	if f.byLayer {
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
	if f.sharedExpert() {
		object["shared_expert_intermediate_size"] = m.Shared
	}
	return object
}
