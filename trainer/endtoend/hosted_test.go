package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/openai"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/show/report"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

const hostedKey = "sk-of-the-test"

// api is an OpenAI-compatible server whose model plays a planner or a solver by a script. The planner
// passes the question on, without a leading "Please ". The solver computes it. Both answer with the
// result that they get. The server omits the usage if uncount is set, and fails as fail decides.
type api struct {
	url     string
	data    string // folder of the team's rows and chats
	uncount bool
	fail    func(question string) (status int) // returns the status of a failure, or 0; may be nil

	mu       sync.Mutex
	requests int
	subTasks []string // first messages to the solver
}

func startAPI(t *testing.T) *api {
	t.Helper()
	t.Setenv("MGRPO_TEST_HOSTED_KEY", hostedKey)
	a := &api{data: t.TempDir()}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.url = server.URL + "/v1"
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string
		Messages []openai.Message
		Tools    []struct{ Function struct{ Name string } }
	}
	raw, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(raw, &q); err != nil || len(q.Messages) == 0 {
		http.Error(w, "no request", http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	last := q.Messages[len(q.Messages)-1]
	switch {
	case r.Header.Get("Authorization") != "Bearer "+hostedKey:
		http.Error(w, "no such key", http.StatusUnauthorized)
	case q.Model != "big":
		http.Error(w, "no such model", http.StatusNotFound)
	default:
		if a.fail != nil {
			if status := a.fail(last.Content); status != 0 {
				http.Error(w, "out of order, or at most this model's maximum context length", status)
				return
			}
		}
		a.say(w, last, len(q.Tools) > 0 && q.Tools[0].Function.Name == "solver")
	}
}

// count returns the number of requests so far.
func (a *api) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests
}

// say answers the last message.
func (a *api) say(w http.ResponseWriter, last openai.Message, planner bool) {
	answer := openai.Message{Role: "assistant", Content: "ok"}
	finish := "stop"
	switch {
	case last.Role == "tool":
		answer.Content = last.Content
	case !strings.HasPrefix(last.Content, "Reply with"):
		call := openai.Function{Name: "calculator", Arguments: `{"expression": "3 + 4"}`}
		if !planner {
			a.subTasks = append(a.subTasks, last.Content)
		} else {
			arguments, _ := json.Marshal(map[string]string{"task": strings.TrimPrefix(last.Content, "Please ")})
			call = openai.Function{Name: "solver", Arguments: string(arguments)}
		}
		answer.Content, finish = "", "tool_calls"
		answer.ToolCalls = []openai.ToolCall{{ID: "1", Type: "function", Function: call}}
	}
	reply := map[string]any{"choices": []any{map[string]any{"message": answer, "finish_reason": finish}}}
	if !a.uncount {
		reply["usage"] = openai.Usage{Prompt: 100, Completion: 10}
	}
	json.NewEncoder(w).Encode(reply)
}

// alternatingTask is a task in which every second rollout is correct, so that there is something to learn.
type alternatingTask struct{ task.Task }

func (alternatingTask) VerifyMain(_ context.Context, _ task.Query, a task.Attempt) (float64, error) {
	return float64(a.Rollout % 2), nil
}

// demonstrated contains the rows that the random models of these tests learn by heart.
const demonstrated = `{"agent": "planner", "messages": [{"role": "user", "content": "3 + 4"}, {"role": "assistant", "content": "<tool_call>\n{\"name\": \"solver\", \"arguments\": {\"task\": \"3 + 4\"}}\n</tool_call>"}, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "7"}]}
{"agent": "solver", "messages": [{"role": "user", "content": "3 + 4"}, {"role": "assistant", "content": "7"}]}
`

// hostedTeam returns the configuration of a planner and a solver; the agent `name` is hosted.
func hostedTeam(t *testing.T, a *api, name, dir string, sets ...string) *config.Config {
	t.Helper()
	var rows strings.Builder
	for i := range 4 {
		fmt.Fprintf(&rows, "{\"id\": \"q%d\", \"question\": \"3 + 4\", \"answer\": \"7\"}\n", i)
	}
	for file, text := range map[string]string{"rows.jsonl": rows.String(), "chats.jsonl": demonstrated} {
		if err := os.WriteFile(filepath.Join(a.data, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tokens, err := filepath.Abs("../../testdata/tokenizer/smollm2")
	if err != nil {
		t.Fatal(err)
	}
	models := map[string]string{}
	for _, n := range []string{"planner", "solver"} {
		models[n] = "{family: llama, width: 32, layers: 1, heads: 2, ffn: 64, max_positions: 512, tokenizer: " + tokens + "}"
	}
	models[name] = "{kind: openai, url: \"" + a.url + "\", name: big, key_env: MGRPO_TEST_HOSTED_KEY, retries: 0}"
	cfg, err := config.Parse(filepath.Join(a.data, "team.yaml"), fmt.Appendf(nil, `
run: {name: hosted, dir: %q, seed: 3, steps: 2, checkpoint_every: 1, threads: 2}
store: {timeout: 1h}
task: {kind: jsonl, train: rows.jsonl, eval: rows.jsonl, queries_per_step: 2, verifier: {kind: numeric}}
grpo: {rollouts: 4, align: {d: 1}}
eval: {every: 1, queries: 2, samples: 1, before: false}
cold_start: {demonstrations: chats.jsonl, steps: 40, batch: 2, optimizer: {lr: 1e-2}}
agents:
  planner: {role: main, model: %s, limits: {max_turns: 3, max_new_tokens: 48, max_tokens: 512}, optimizer: {lr: 1e-3}}
  solver: {role: sub, model: %s, tools: [calculator], limits: {max_turns: 3, max_new_tokens: 48, max_tokens: 512}, optimizer: {lr: 1e-3}}
`, dir, models["planner"], models["solver"]), sets)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func trainHosted(t *testing.T, cfg *config.Config, resume bool) *recorder {
	t.Helper()
	return mustTrain(t, cfg, trainer.TrainOptions{Resume: resume, Task: alternatingTask{openTask(t, cfg)}})
}

// TestHosted trains the sub-agent of a hosted planner, and a planner with a hosted sub-agent, for two steps with a
// resume in between. The hosted agent takes part in everything except the training, and checkpoints record its address.
func TestHosted(t *testing.T) {
	for name, other := range map[string]string{"planner": "solver", "solver": "planner"} {
		t.Run(name, func(t *testing.T) {
			a, dir := startAPI(t), t.TempDir()
			first := trainHosted(t, hostedTeam(t, a, name, dir, "run.steps=1"), false)
			second := trainHosted(t, hostedTeam(t, a, name, dir), true)
			for step, seen := range []*recorder{first, second} {
				if notes := seen.String(); !strings.Contains(notes, name+": info: its model big is hosted at "+a.url) {
					t.Errorf("the notes do not mention the hosted model: %s", notes)
				}
				own, learns := seen.find(t, "step", int64(step+1), name).Values, seen.find(t, "step", int64(step+1), other).Values
				if learns["trajectories"] == 0 || learns["trained_tokens"] == 0 || learns["groups_degenerate"]+learns["groups_empty"] == learns["groups"] {
					t.Errorf("step %d: %s learned nothing: %v", step+1, other, learns)
				}
				if own["trajectories"] == 0 || own["sampled_tokens"] == 0 || own["format_valid"] == 0 || own["rollouts_removed"] != 0 || own["trajectories_stale"] != 0 {
					t.Errorf("step %d: %v", step+1, own)
				}
				for _, absent := range []string{"trained_tokens", "memory_bytes", "gap_mean"} {
					if v, ok := own[absent]; ok {
						t.Errorf("step %d: %s is %v for a hosted model", step+1, absent, v)
					}
				}
				seen.find(t, "eval", int64(step+1), name)
			}
			hostedFiles(t, dir, a, name, other)
		})
	}
}

// hostedFiles checks the files of a run of two steps.
func hostedFiles(t *testing.T, dir string, a *api, name, other string) {
	t.Helper()
	m, err := archive.Verify(archive.CheckpointsOf(dir).StepDir(2))
	if err != nil {
		t.Fatal(err)
	}
	here, err := archive.CheckpointsOf(dir).Summaries()
	if err != nil || !slices.Equal(here[0].Agents, []string{"planner", "solver"}) {
		t.Errorf("a checkpoint's summary: %+v, %v", here, err)
	}
	mine, _ := m.Agent(name)
	theirs, _ := m.Agent(other)
	if mine.Endpoint == nil || mine.Endpoint.URL != a.url || mine.Endpoint.Model != "big" || len(mine.Files) > 0 || theirs.Endpoint != nil || len(theirs.Files) == 0 {
		t.Errorf("the manifest has %+v and %+v", mine, theirs)
	}
	if mine.Ledger.Size == 0 {
		t.Error("the ledger of the hosted model is empty")
	}
	if bytes.Contains(readAll(t, dir), []byte(hostedKey)) {
		t.Error("the key is in the run's folder")
	}
	lines := readTrajectories(t, dir, "step-1", name)
	if len(lines) == 0 {
		t.Fatal("the hosted model has no trajectories")
	}
	for _, l := range lines {
		if err := l.Check(); err != nil || len(l.Tokens) > 0 || l.Usage == nil || l.Reward == nil {
			t.Errorf("%s: %v, %d tokens, usage %v, reward %v", l.ID, err, len(l.Tokens), l.Usage, l.Reward)
		}
		if l.Turns[0].Role != agent.RolePrompt || !l.Turns[1].Sampled || !strings.Contains(l.Turns[1].Text, "(") || l.Turns[2].Role != agent.RoleObserved {
			t.Errorf("%s: turns %+v", l.ID, l.Turns)
		}
	}
	var page bytes.Buffer
	r, err := report.Open([]string{dir})
	if err == nil {
		err = r.Write(&page, report.Options{})
	}
	if err != nil || !strings.Contains(page.String(), "calculator(") && name == "solver" || strings.Contains(page.String(), "No checkpoint has "+name) {
		t.Errorf("the report lacks the hosted model's conversations or a tokenizer: %v", err)
	}
}

// readAll returns the contents of all files in a folder.
func readAll(t *testing.T, dir string) (all []byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		all = append(all, data...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestHostedWithoutUsage checks that tokens that the server does not count are unknown rather than 0.
func TestHostedWithoutUsage(t *testing.T) {
	a := startAPI(t)
	a.uncount = true
	cfg := hostedTeam(t, a, "planner", t.TempDir(), "run.steps=1", "cold_start.demonstrations=none", "agents.solver.limits.max_new_tokens=1")
	v := trainHosted(t, cfg, false).find(t, "step", 1, "planner").Values
	for _, absent := range []string{"tokens", "tokens_mean", "sampled_tokens", "rollout_tokens_per_second"} {
		if n, ok := v[absent]; ok {
			t.Errorf("%s is %v", absent, n)
		}
	}
	if v["trajectories"] != 8 || v["turns_mean"] != 4 {
		t.Errorf("%v", v)
	}
}

// TestHostedAtTheStart checks that a wrong key or model name ends the run before its first step, as does a key that is not set.
func TestHostedAtTheStart(t *testing.T) {
	for set, want := range map[string][]string{
		"agents.planner.model.name=small":                     {"agents.planner.model", "404 Not Found", "no such model", "check url and name"},
		"agents.planner.model.key_env=MGRPO_TEST_OTHER_KEY":   {"agents.planner.model", "401 Unauthorized", "check the key"},
		"agents.planner.model.key_env=MGRPO_TEST_KEY_NOT_SET": {"agents.planner.model", "MGRPO_TEST_KEY_NOT_SET"},
		"agents.planner.model.url=http://127.0.0.1:1/v1":      {"agents.planner.model", "connection refused"},
		"run.deterministic=true":                              {"run.deterministic: agents.planner has a hosted model"},
	} {
		t.Setenv("MGRPO_TEST_OTHER_KEY", "sk-another")
		a, dir := startAPI(t), t.TempDir()
		seen := &recorder{}
		err := trainer.Train(t.Context(), hostedTeam(t, a, "planner", dir, set, "cold_start.demonstrations=none"), trainer.TrainOptions{Observer: seen})
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want %q in it", set, err, w)
			}
		}
		if err != nil && strings.Contains(err.Error(), "sk-another") {
			t.Errorf("the error contains the key: %v", err)
		}
		if len(seen.Records) > 0 {
			t.Errorf("%s: the run began", set)
		}
	}
}

// TestHostedFails checks that every agent removes a rollout for which the server fails, in the main agent or
// the sub-agent, and removes no others. The ledgers contain the reason. The rollout has no reward, not even 0.
func TestHostedFails(t *testing.T) {
	for _, name := range []string{"planner", "solver"} {
		t.Run(name, func(t *testing.T) {
			a, dir := startAPI(t), t.TempDir()
			asked := 0
			a.fail = func(question string) int {
				if question != "3 + 4" {
					return 0
				}
				if asked++; asked%4 == 2 {
					return http.StatusInternalServerError
				}
				return 0
			}
			cfg := hostedTeam(t, a, name, dir, "run.steps=1", "grpo.max_removed=1")
			seen := trainHosted(t, cfg, false)
			for _, n := range []string{"planner", "solver"} {
				v := seen.find(t, "step", 1, n).Values
				if v["rollouts_failed"] == 0 || v["rollouts_failed"] != v["rollouts_removed"] || v["rollouts_failed"] == 8 {
					t.Errorf("%s: %v rollouts failed, %v were removed", n, v["rollouts_failed"], v["rollouts_removed"])
				}
				ledger, err := os.ReadFile(filepath.Join(dir, "ledger", n+".jsonl"))
				if want := "failed: " + name + " gave no answer: " + a.url + "/chat/completions: "; err != nil || !strings.Contains(string(ledger), want) || !strings.Contains(string(ledger), "500 Internal Server Error") {
					t.Errorf("the ledger of %s does not contain %q: %v\n%s", n, want, err, ledger)
				}
			}
		})
	}
}

// TestHostedFailsPermanently checks that a server that always fails ends the run after some
// steps, with the server's message. An evaluation in which it fails has no accuracy.
func TestHostedFailsPermanently(t *testing.T) {
	a := startAPI(t)
	a.fail = func(question string) int {
		if question == "3 + 4" {
			return http.StatusServiceUnavailable
		}
		return 0
	}
	seen := &recorder{}
	cfg := hostedTeam(t, a, "planner", t.TempDir(), "run.steps=9", "grpo.max_removed=0.5", "cold_start.demonstrations=none")
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen, Task: alternatingTask{openTask(t, cfg)}})
	if err == nil || !strings.Contains(err.Error(), "grpo.max_removed") || !strings.Contains(err.Error(), "503 Service Unavailable") {
		t.Errorf("%v", err)
	}
	e := seen.find(t, "eval", 1, "planner")
	if _, ok := e.Values["accuracy"]; ok || !strings.Contains(e.Unknown, "503") {
		t.Errorf("evaluation: %v, %q", e.Values, e.Unknown)
	}
}

// TestHostedPromptTooLong checks that a question that exceeds the hosted model's context is
// named, and that its rollouts count as for a local model.
func TestHostedPromptTooLong(t *testing.T) {
	a := startAPI(t)
	a.fail = func(question string) int {
		if question == "3 + 4" {
			return http.StatusBadRequest
		}
		return 0
	}
	seen := trainHosted(t, hostedTeam(t, a, "planner", t.TempDir(), "run.steps=1", "cold_start.demonstrations=none"), false)
	v := seen.find(t, "step", 1, "planner").Values
	if v["prompts_too_long"] != 8 || v["trajectories"] != 8 || v["rollouts_removed"] != 0 || v["lag_max"] != 0 {
		t.Errorf("%v", v)
	}
	if notes := seen.String(); !strings.Contains(notes, "is longer than the context of the hosted model") {
		t.Errorf("the notes name no row: %s", notes)
	}
}

// TestHostedIsNotCalled checks that the error does not report that a hosted model learned nothing.
func TestHostedIsNotCalled(t *testing.T) {
	cfg := hostedTeam(t, startAPI(t), "solver", t.TempDir(), "run.steps=1", "cold_start.demonstrations=none", "agents.planner.limits.max_new_tokens=1")
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: &recorder{}})
	if !errors.Is(err, trainer.ErrNothingTrained) || !strings.Contains(err.Error(), "solver was never called in 1 step: have") {
		t.Errorf("%v", err)
	}
}

// TestHostedEvaluates checks that `mgrpo eval` queries the hosted model again.
func TestHostedEvaluates(t *testing.T) {
	a, dir := startAPI(t), t.TempDir()
	cfg := hostedTeam(t, a, "solver", dir, "run.steps=0", "cold_start.steps=1")
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: &recorder{}}); err != nil && !errors.Is(err, trainer.ErrNothingTrained) {
		t.Fatal(err)
	}
	before := a.count()
	e, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{})
	if err != nil || len(e.Records) != 2 || a.count() == before {
		t.Errorf("%v, %d records, %d requests", err, len(e.Records), a.count()-before)
	}
	if !slices.Contains(stepsIn(t, dir), 0) {
		t.Errorf("checkpoints %v", stepsIn(t, dir))
	}
}
