package memory

import "testing"

func TestActivations(t *testing.T) {
	whole, light := count(t, "boss").Of(Activations), count(t, "boss", "agents.boss.engine.checkpoint_activations=true").Of(Activations)
	if light >= whole/3 {
		t.Errorf("%d with checkpointing, but %d without", light, whole)
	}
	if adapted := count(t, "boss", "agents.boss.lora={r: 8}").Of(Activations); adapted != whole-2*4*256*49152 {
		t.Errorf("%d with adapters, but %d without: a frozen head has half the rows of logits", adapted, whole)
	}
	if half := count(t, "boss", "agents.boss.engine.micro_batch_tokens=1024").Of(Activations); half >= whole*2/3 {
		t.Errorf("%d with half the tokens, but %d with all", half, whole)
	}
}

// On a GPU the head's logits and a layer's backward pass do not need memory at the same time.
// bf16 gradients of logits are copied only by a cold start and by ratios of sequences.
func TestActivationsOnGPU(t *testing.T) {
	of := func(sets ...string) int64 {
		return count(t, "boss", append(sets, "agents.boss.device=cuda")...).Of(Activations)
	}
	logits, gradient := int64(2048*49152*4), int64(49152*576*4)
	token, sequence := of("agents.boss.dtype=bf16"), of("agents.boss.dtype=bf16", "grpo.ratio=sequence_geometric")
	if copied := sequence - token; copied != logits/2 {
		t.Errorf("a ratio of sequences copies %d bytes, want %d", copied, logits/2)
	}
	cfg := team(t, "agents.boss.device=cuda", "agents.boss.dtype=bf16")
	a := cfg.Agent("boss")
	kept, layer := layerActivations(smolLM2Shape, &a.Engine, 2048, 2)
	if layer >= logits || token != kept+logits+gradient {
		t.Errorf("%d bytes, but %d kept, %d for a layer, %d for the head", token, kept, layer, logits+gradient)
	}
}
