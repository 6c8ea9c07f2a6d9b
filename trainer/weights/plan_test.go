package weights

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/arch"
)

func TestPlan(t *testing.T) {
	cfg := arch.Config{Family: arch.Llama, VocabSize: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, FFN: 1536,
		MaxPosition: 8192, Tied: true}.WithDefaults()
	if cfg.Parameters() != 134515008 { // SmolLM2-135M
		t.Fatal(cfg.Parameters())
	}
	p := Plan(cfg, PlanOptions{ComputeDType: F32, Train: true, Slots: 16, ContextLen: 1024, MicroBatchTokens: 2048, LogitRows: 256})
	const weights = 4 * 134515008
	if p.Weights != weights+4*1024*64 || p.Gradients != weights || p.Optimizer != 2*weights || p.KVCache != 2*30*16*1024*192*4 {
		t.Errorf("%+v", p)
	}
	if p.Total != p.Weights+p.Gradients+p.Optimizer+p.KVCache+p.Activations || p.Activations <= 0 || p.Snapshot != 3*weights {
		t.Errorf("%+v", p)
	}
	light := Plan(cfg, PlanOptions{ComputeDType: F32, Train: true, MicroBatchTokens: 2048, LogitRows: 256, Checkpointing: true})
	if light.Activations >= p.Activations/4 || light.KVCache != 0 {
		t.Errorf("checkpointing: %+v", light)
	}
	half := Plan(cfg, PlanOptions{ComputeDType: BF16, Train: true})
	if half.Weights != weights/2 || half.Optimizer != 3*weights {
		t.Errorf("bf16: %+v", half)
	}
	if frozen := Plan(cfg, PlanOptions{ComputeDType: F32, Slots: 1, ContextLen: 1}); frozen.Gradients != 0 || frozen.Optimizer != 0 || frozen.Snapshot != 0 {
		t.Errorf("frozen: %+v", frozen)
	}
	decode := Plan(cfg, PlanOptions{ComputeDType: BF16, Slots: 16, ContextLen: 1024})
	if decode.Activations <= decode.KVCache/30 {
		t.Errorf("bf16 attention copies a layer's cache: %+v", decode)
	}
	table := p.String()
	for _, line := range strings.Split(table, "\n") {
		if len(line) > 80 {
			t.Errorf("%q is wider than 80 columns", line)
		}
	}
	if !strings.Contains(table, "weights         513.4 MiB") || !strings.Contains(table, "total") {
		t.Errorf("%s", table)
	}
}
