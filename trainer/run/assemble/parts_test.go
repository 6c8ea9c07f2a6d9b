package assemble

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// A run is deterministic if its policies are, unless the configuration disables that.
func TestDeterministic(t *testing.T) {
	for _, c := range []struct {
		sets []string
		want bool
		err  string
	}{
		{want: true},
		{sets: []string{"run.deterministic=false"}},
		{sets: []string{"agents.researcher.device=cuda"}},
		{sets: []string{"agents.researcher.device=cuda", "run.arm=single"}, want: true}, // the researcher takes no part
		{sets: []string{"grpo.max_lag=1", "grpo.old=recomputed", "grpo.tis_cap=2"}},
		{sets: []string{"agents.planner.engine={kind: vllm, url: [\"http://h:1\"], weights: {path: w}}"}},
		{sets: []string{"agents.planner.engine={kind: vllm, url: [\"http://h:1\"], weights: {path: w}}", "run.deterministic=true"}, err: "run.deterministic: agents.planner samples on an engine of kind vllm"},
		{sets: []string{"agents.researcher.device=cuda", "run.deterministic=true"}, err: "run.deterministic: agents.researcher is on cuda"},
	} {
		cfg, err := config.Load("../../../examples/quickstart/team.yaml", c.sets)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Deterministic(cfg)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%v: %v, %v", c.sets, got, err)
		}
	}
}

// TestUnusedTensorsAreSaid checks that a note names each unused tensor of a checkpoint.
func TestUnusedTensorsAreSaid(t *testing.T) {
	folder := t.TempDir()
	for _, dir := range []string{golden.File(t, "models", "llama-tiny"), golden.File(t, "tokenizer", "smollm2")} {
		if err := os.CopyFS(folder, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	const unused = "model.layers.0.self_attn.rotary_emb.inv_freq"
	addTensor(t, filepath.Join(folder, "model.safetensors"), unused)
	p, _ := openWriter(t, folder, "")
	if len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0], unused) {
		t.Errorf("%q", p.Notes)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// addTensor appends a tensor of one float32 to a safetensors file.
func addTensor(t *testing.T, path, name string) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 8 + binary.LittleEndian.Uint64(file)
	header := map[string]any{}
	if err := json.Unmarshal(file[8:n], &header); err != nil {
		t.Fatal(err)
	}
	end := len(file[n:])
	header[name] = map[string]any{"dtype": "F32", "shape": []int{1}, "data_offsets": []int{end, end + 4}}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	whole := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, file[n:], make([]byte, 4))
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
}

// stoppingPolicy is a policy that ends every turn at once.
type stoppingPolicy struct{ stop int32 }

func (stoppingPolicy) ContextLimit() int { return 1 << 20 }

func (s stoppingPolicy) Generate(context.Context, policy.Request) (policy.Completion, error) {
	return policy.Completion{Tokens: []int32{s.stop}, LogProbs: []float32{0}, Finish: policy.FinishStop}, nil
}

// TestDateIsTheRuns checks that today's date in a template is the run's date, regardless of the time of rendering.
func TestDateIsTheRuns(t *testing.T) {
	cfg, err := config.Load("../../../examples/research-qwen3/team.yaml", []string{"run.date=2024-07-26"})
	if err != nil {
		t.Fatal(err)
	}
	tok := tokenizertest.WithTemplate(t, "qwen3", "Today is {{ strftime_now('%d %b %Y') }}.{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
	source, err := OpenTask(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenPlayer(t.Context(), cfg, cfg.Agent("searcher"), source, tok, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Policy = stoppingPolicy{tok.StopIDs()[0]}
	said, err := p.Play(t.Context(), play.Conversation{Text: "?"})
	if err != nil || !strings.HasPrefix(said.Turns[0].Text, "Today is 26 Jul 2024.") {
		t.Errorf("%+v, %v", said.Turns, err)
	}
}
