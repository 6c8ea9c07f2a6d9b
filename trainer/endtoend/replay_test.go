package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// services are a retriever and a judge that never answer the same twice and sometimes fail.
type services struct{ asked atomic.Int64 }

func (s *services) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.asked.Add(1)
	switch {
	case n%7 == 0:
		http.Error(w, fmt.Sprint("failure ", n), http.StatusBadRequest)
	case r.URL.Path == "/retrieve":
		fmt.Fprintf(w, `{"result": [[{"document": {"contents": "answer %d"}}]]}`, n)
	default:
		json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": map[string]any{"content": fmt.Sprintf("Score: %d", n%5)}}}})
	}
}

// replayed returns a team of random models that learned one conversation by heart, with a retriever and a judge.
func replayed(t *testing.T, services, dir, cache, mode string, sets ...string) *config.Config {
	t.Helper()
	data := t.TempDir()
	tokens, err := filepath.Abs("../../testdata/tokenizer/smollm2")
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	for i := range 8 {
		fmt.Fprintf(&rows, "{\"id\": \"q%d\", \"question\": \"3 + 4\", \"answer\": \"7\"}\n", i)
	}
	for file, text := range map[string]string{
		"rows.jsonl": rows.String(), "judge.txt": "{row} {answer}",
		"chats.jsonl": `{"agent": "planner", "messages": [{"role": "user", "content": "3 + 4"}, {"role": "assistant", "content": "<tool_call>\n{\"name\": \"solver\", \"arguments\": {\"task\": \"3 + 4\"}}\n</tool_call>"}, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "7"}]}
{"agent": "solver", "messages": [{"role": "user", "content": "3 + 4"}, {"role": "assistant", "content": "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"3 + 4\"}}\n</tool_call>"}, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "7"}]}
`,
		"team.yaml": fmt.Sprintf(`
run: {name: replayed, dir: %q, seed: 5, steps: 1, threads: 2}
cache: {dir: %q, mode: %s}
task: {kind: jsonl, train: rows.jsonl, eval: rows.jsonl, queries_per_step: 4, verifier: {kind: judge},
  judge: {url: %q, model: m, scale: 4, retries: 0, prompt: judge.txt, key_env: MGRPO_TEST_JUDGE_KEY}}
grpo: {rollouts: 2, align: {d: 1}, max_removed: 1}
eval: {every: 1, queries: 2, samples: 1, before: false}
cold_start: {demonstrations: chats.jsonl, steps: 40, batch: 2, optimizer: {lr: 1e-2}}
tools: {search: {kind: retriever, url: %q, retries: 0}}
agents:
  planner: {role: main, model: &shape {family: llama, width: 32, layers: 1, heads: 2, ffn: 64, max_positions: 512, tokenizer: %q}, limits: &limits {max_turns: 3, max_new_tokens: 48, max_tokens: 512}, optimizer: {lr: 1e-3}}
  solver: {role: sub, model: *shape, tools: [search], limits: *limits, optimizer: {lr: 1e-3}}
`, dir, cache, mode, services+"/v1", services+"/retrieve", tokens),
	} {
		if err := os.WriteFile(filepath.Join(data, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(filepath.Join(data, "team.yaml"), sets)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestReplay checks that a run with recorded services repeats bit for bit without the services and their keys.
func TestReplay(t *testing.T) {
	t.Setenv("MGRPO_TEST_JUDGE_KEY", "sesame")
	s := &services{}
	server := httptest.NewServer(s)
	cache, first, second := t.TempDir(), t.TempDir(), t.TempDir()
	seen := mustTrain(t, replayed(t, server.URL, first, cache, "record"), trainer.TrainOptions{})
	calls := seen.find(t, "step", 1, "solver").Counts
	if calls[metrics.ToolCalls]["search"] == 0 || s.asked.Load() < 7 {
		t.Fatalf("the team made the calls %v and %d requests", calls, s.asked.Load())
	}
	server.Close()
	os.Unsetenv("MGRPO_TEST_JUDGE_KEY")
	asked := s.asked.Load()
	mustTrain(t, replayed(t, server.URL, second, cache, "replay"), trainer.TrainOptions{})
	if s.asked.Load() != asked {
		t.Errorf("the replay made %d requests", s.asked.Load()-asked)
	}
	for _, name := range []string{"planner", "solver"} {
		file := filepath.Join("ledger", name+".jsonl")
		want, err := os.ReadFile(filepath.Join(first, file))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(second, file)); err != nil || string(got) != string(want) {
			t.Errorf("the ledger of %s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	sameWeights(t, digests(t, first, 1), digests(t, second, 1))
}

// TestReplayOfUnrecordedRequest checks that a replay with an unrecorded request ends with an error that contains the request.
func TestReplayOfUnrecordedRequest(t *testing.T) {
	for name, chats := range map[string]string{"judge": demonstrated, "retriever": ""} {
		cfg := replayed(t, "http://127.0.0.1:1", t.TempDir(), t.TempDir(), "replay")
		if chats != "" {
			if err := os.WriteFile(cfg.Resolve("chats.jsonl"), []byte(chats), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: &recorder{}})
		var missing *recorded.Error
		if !errors.As(err, &missing) || !errors.Is(err, recorded.ErrMissing) || !strings.HasPrefix(missing.Question.Service, name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
