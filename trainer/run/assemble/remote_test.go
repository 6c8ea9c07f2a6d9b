package assemble

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/golden"
)

// sglang replaces an SGLang server. It samples with the model of the folder that a request names.
type sglang struct {
	t       *testing.T
	mu      sync.Mutex
	model   *AgentParts
	version string
	tensors golden.Tensors // from the folder
}

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

func (s *sglang) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Path     string  `json:"model_path"`
		Version  string  `json:"weight_version"`
		IDs      []int32 `json:"input_ids"`
		Sampling struct {
			Temperature float64 `json:"temperature"`
		} `json:"sampling_params"`
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			s.t.Error(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var reply map[string]any
	switch r.URL.Path {
	case "/server_info":
		reply = map[string]any{"version": "0.5.16", "context_length": 48}
	case "/model_info":
		reply = map[string]any{"weight_version": s.version}
	case "/update_weights_from_disk":
		s.model, _ = openWriter(s.t, body.Path, "")
		s.version, s.tensors = body.Version, golden.ReadTensors(s.t, filepath.Join(body.Path, "model.safetensors"))
		reply = map[string]any{"success": true}
	case "/generate":
		logits, err := s.model.Model.Logits(s.t.Context(), body.IDs, []int{len(body.IDs)})
		if err != nil {
			s.t.Error(err)
			return
		}
		const sampled = 7
		sum := 0.0
		for _, z := range logits[0] {
			sum += math.Exp(float64(z-logits[0][sampled]) / body.Sampling.Temperature)
		}
		reply = map[string]any{"output_ids": []int32{sampled}, "meta_info": map[string]any{
			"weight_version": s.version, "output_token_logprobs": []any{[]any{-math.Log(sum), sampled, nil}}}}
	}
	if err := json.NewEncoder(w).Encode(reply); err != nil {
		s.t.Error(err)
	}
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
	server := &sglang{t: t}
	h := httptest.NewServer(server)
	defer h.Close()
	p, cfg := openWriter(t, base, fmt.Sprintf(", lora: {init: %q}, engine: {kind: sglang, url: [%q], weights: {path: %q, dtype: fp32}}", adapter, h.URL, t.TempDir()))
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
	if len(want.Merged) == 0 || len(server.tensors) != len(want.Merged) {
		t.Errorf("the server got %d tensors, but PEFT merges %d", len(server.tensors), len(want.Merged))
	}
	for name, w := range want.Merged {
		sum, sumsq := 0.0, 0.0
		for _, v := range server.tensors[name].Data {
			sum, sumsq = sum+v, sumsq+v*v
		}
		golden.Near(t, name, sum, w.Sum, tolSum)
		golden.Near(t, name+", squares", sumsq/w.Sumsq, 1, tolSumSq)
	}
	for _, p := range []*AgentParts{p, server.model} {
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
