package assemble

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote/remotetest"
	"github.com/mgrpo/mgrpo/trainer/golden"
)

// openWriter loads an agent with this model and additional settings.
func openWriter(t *testing.T, folder, settings string) (*AgentParts, *config.Config) {
	cfg, err := config.Parse("team.yaml", fmt.Appendf(nil, "run: {name: x}\nagents: {writer: {role: main, model: %q%s}}\n", folder, settings), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &AgentParts{}
	if err := p.load(t.Context(), AgentOptions{Config: cfg, Agent: "writer", Process: &Process{Agents: []string{"writer"}}}, cfg.Agent("writer")); err != nil {
		t.Fatal(err)
	}
	return p, cfg
}

// TestServersGetMergedAdapters checks that a server gets the same weights that PEFT merges, with the names of
// the checkpoint. Its samples must have the trainer's log-probs; the trainer adds the adapters to the base.
func TestServersGetMergedAdapters(t *testing.T) {
	const tolSum, tolSumSq = 2e-5, 1e-6 // tolerances of the merged weights' sums (absolute) and of their squares' sums (relative)
	base, adapter := t.TempDir(), golden.File(t, "lora", "llama-qkvo")
	for _, dir := range []string{golden.File(t, "models", "llama-tiny"), golden.File(t, "tokenizer", "smollm2")} {
		if err := os.CopyFS(base, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	server := remotetest.Start(t)
	var got golden.Tensors
	server.Loaded = func(folder string) { got = golden.ReadTensors(t, filepath.Join(folder, "model.safetensors")) }
	p, cfg := openWriter(t, base, fmt.Sprintf(", lora: {init: %q}, engine: {kind: sglang, url: [%q], weights: {path: %q, dtype: fp32}}", adapter, server.URL, t.TempDir()))
	sampler, err := remoteOpener(cfg, cfg.Agent("writer")).open(t.Context(), p, AgentOptions{Note: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	p.Policy = sampler
	if err := sampler.UpdateWeights(t.Context(), 1); err != nil {
		t.Error(err)
	}
	var want struct {
		Merged map[string]struct{ Sum, Sumsq float64 } `json:"checksums_merged"`
	}
	golden.Read(t, "lora", "llama-qkvo/expected.json", &want)
	if len(want.Merged) == 0 || len(got) != len(want.Merged) {
		t.Errorf("the server got %d tensors, but PEFT merges %d", len(got), len(want.Merged))
	}
	for name, w := range want.Merged {
		sum, sumsq := 0.0, 0.0
		for _, v := range got[name].Data {
			sum, sumsq = sum+v, sumsq+v*v
		}
		golden.Near(t, name, sum, w.Sum, tolSum)
		golden.Near(t, name+", squares", sumsq/w.Sumsq, 1, tolSumSq)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
