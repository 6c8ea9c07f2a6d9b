package arch

// HunYuan is the family of the dense HunYuan: Llama with norms of heads after rotation.
const HunYuan = "hunyuan_v1_dense"

func init() {
	register(&family{
		name:         HunYuan,
		architecture: "HunYuanDenseV1ForCausalLM",
		defaults: Config{VocabSize: 290943, Hidden: 4096, Layers: 32, Heads: 32, FFN: 11008, RMSEps: 1e-5, MaxPosition: 2048,
			Tokens: SpecialTokens{BOS: []int32{1}, EOS: []int32{2}, Pad: []int32{0}}},
		has:      familyKeys{attentionBias: true, alpha: true},
		Features: Features{NormsAfterRope: true},
		read:     func(k *keys, _ *Config) { refuseOtherHunYuan(k) },
		layer: func(l *layer, c Config) {
			l.inputNorm()
			l.qkv(c.AttentionBias)
			l.headNormsNamed("self_attn.query_layernorm", "self_attn.key_layernorm")
			l.output(c.AttentionBias)
			l.postNorm()
			l.gatedMLP(false)
		},
		gguf: &gguf{name: "hunyuan-dense"},
	})
}

// refuseOtherHunYuan refuses settings of published configurations that transformers does not read.
func refuseOtherHunYuan(k *keys) {
	for key, computed := range map[string]bool{"use_cla": false, "use_qk_norm": true, "use_rotary_pos_emb": true} {
		value := computed
		if k.booleanOrNull(key, &value); value != computed {
			k.fail("%s %v is not supported: only %v", key, value, computed)
		}
	}
	norm := "rms"
	if k.text("norm_type", &norm); norm != "rms" {
		k.fail("norm_type %q is not supported: only rms", norm)
	}
}
