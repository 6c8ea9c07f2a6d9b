package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// wordProblems returns the team of examples/own-task with small random models, trained enough to delegate.
func wordProblems(t *testing.T, dir string, sets ...string) *config.Config {
	t.Helper()
	smol, err := filepath.Abs("../../testdata/tokenizer/smollm2")
	if err != nil {
		t.Fatal(err)
	}
	shape := "{family: llama, width: 64, layers: 1, heads: 2, ffn: 128, tokenizer: " + smol + "}"
	cfg, err := config.Load("../../examples/own-task/team.yaml", append([]string{"run.dir=" + dir, "run.threads=2", "run.steps=3", "run.checkpoint_every=1", "run.keep=9",
		"task.queries_per_step=4", "grpo.rollouts=4", "grpo.align.d=1", "eval.every=0", "eval.before=false", "eval.queries=4", "eval.samples=2",
		"cold_start.steps=60", "cold_start.optimizer.lr=1e-2", "agents.planner.optimizer.lr=1e-3", "agents.solver.optimizer.lr=1e-3",
		"agents.planner.model=" + shape, "agents.solver.model=" + shape, "agents.planner.limits.max_calls_per_turn=2",
		"agents.planner.limits.max_new_tokens=64", "agents.solver.limits.max_new_tokens=64", "agents.planner.limits.max_tokens=512", "agents.solver.limits.max_tokens=512"}, sets...))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// program plays rollouts of word problems through the gateway. It runs the same loop as agent.Run, but uses only HTTP.
type program struct {
	t    *testing.T
	cfg  *config.Config
	base string
	key  string
}

// chatMessage is a message of a chat.
type chatMessage struct {
	Role       string          `json:"role"`
	Content    *string         `json:"content"`
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	Name       string          `json:"name,omitempty"`

	MGRPO struct {
		Calls []calledFunction `json:"calls"`
	} `json:"mgrpo"`
}

type calledFunction struct{ Name, Arguments, Problem, id string }

// calls returns the message's calls, including malformed ones.
func (m chatMessage) calls() (out []calledFunction) {
	var calls []struct {
		ID       string
		Function calledFunction
	}
	if json.Unmarshal(m.ToolCalls, &calls) == nil {
		for _, c := range calls {
			c.Function.id = c.ID
			out = append(out, c.Function)
		}
	}
	for i, c := range m.MGRPO.Calls {
		if i < len(out) {
			out[i].Problem = c.Problem
		} else {
			out = append(out, c)
		}
	}
	return out
}

// ask requests an agent's answer to messages. If a limit ended the conversation, why is not empty.
func (p *program) ask(ctx context.Context, name string, messages []chatMessage, tools []any) (said chatMessage, why string, err error) {
	body, err := json.Marshal(map[string]any{"model": name, "messages": messages, "tools": tools})
	if err != nil {
		return said, "", err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", p.base+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return said, "", err
	}
	r.Header.Set("Authorization", "Bearer "+p.key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return said, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return said, "", err
	}
	var answer struct {
		Choices []struct {
			Message      chatMessage
			FinishReason string `json:"finish_reason"`
		}
		Usage struct {
			Sampled int `json:"completion_tokens"`
		}
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return said, "", fmt.Errorf("%s: %q", resp.Status, text)
	}
	switch answer.Error.Code {
	case "":
	case "turns":
		return said, "turns", nil
	case "context_length_exceeded":
		return said, "tokens", nil
	default:
		return said, "", fmt.Errorf("%s: %s", resp.Status, answer.Error.Message)
	}
	if answer.Choices[0].FinishReason == "length" {
		if why = "tokens"; answer.Usage.Sampled == p.cfg.Agent(name).Limits.MaxNewTokens {
			why = "length"
		}
	}
	return answer.Choices[0].Message, why, nil
}

func text(s string) *string { return &s }

// converse runs a conversation with an agent and returns its answer; ok reports whether there is one.
func (p *program) converse(ctx context.Context, name, task string) (answer string, ok bool, err error) {
	a := p.cfg.Agent(name)
	system, err := os.ReadFile(p.cfg.Resolve(a.Prompt))
	if err != nil {
		return "", false, err
	}
	tools := []any{functionOf("solver", p.cfg.Agent("solver").Describe, `{"type":"object","properties":{"task":{"type":"string","description":"What to do, complete in itself: the helper sees nothing else."}},"required":["task"]}`)}
	if name == "solver" {
		calculator := tool.Calculator()
		tools = []any{functionOf("calculator", calculator.Description(), string(calculator.Schema()))}
	}
	messages := []chatMessage{{Role: "system", Content: text(string(system))}, {Role: "user", Content: &task}}
	for {
		said, why, err := p.ask(ctx, name, messages, tools)
		if err != nil || why != "" {
			return "(no answer: " + why + ")", false, err
		}
		calls := said.calls()
		if len(calls) == 0 {
			if said.Content == nil || strings.TrimSpace(*said.Content) == "" {
				return "(no answer: it is empty)", false, nil
			}
			return strings.TrimSpace(*said.Content), true, nil
		}
		messages = append(messages, said)
		for i, c := range calls {
			result := "error: " + c.Problem
			if c.Problem == "" {
				if result, err = p.carryOut(ctx, c); err != nil {
					return "", false, err
				}
			}
			messages = append(messages, chatMessage{Role: "tool", Content: &result, ToolCallID: c.id, Name: c.Name})
			if i == a.Limits.MaxCallsPerTurn {
				break
			}
		}
	}
}

// carryOut calls the calculator or the solver.
func (p *program) carryOut(ctx context.Context, c calledFunction) (string, error) {
	if c.Name == "calculator" {
		result, err := tool.Calculator().Call(ctx, json.RawMessage(c.Arguments))
		if err != nil {
			return "error: " + err.Error(), nil
		}
		return result, nil
	}
	var arguments struct{ Task string }
	if err := json.Unmarshal([]byte(c.Arguments), &arguments); err != nil {
		return "", err
	}
	answer, _, err := p.converse(ctx, "solver", arguments.Task)
	return answer, err
}

func functionOf(name, description, schema string) any {
	return struct {
		Type     string `json:"type"`
		Function any    `json:"function"`
	}{"function", struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	}{name, description, json.RawMessage(schema)}}
}

// request sends JSON and reads the answer into out, unless out is nil.
func request(ctx context.Context, method, url, key string, body, out any) (int, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if out != nil && resp.StatusCode == 200 {
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	return resp.StatusCode, err
}

const leaseToken = "a-token-for-the-programs"

// machine leases rollouts and plays them until ctx ends. For each lease, dies reports whether
// the machine is lost while it plays the rollout.
func machine(ctx context.Context, t *testing.T, cfg *config.Config, url string, dies func() bool) error {
	for ctx.Err() == nil {
		var o gateway.Lease
		status, err := request(ctx, "POST", url+"/rollouts/lease", leaseToken, nil, &o)
		if err != nil || status == 204 {
			continue
		}
		if status != 200 {
			return fmt.Errorf("a lease: %d", status)
		}
		var row struct{ Question string }
		if err := json.Unmarshal(o.Query, &row); err != nil {
			return err
		}
		p := &program{t: t, cfg: cfg, base: o.BaseURL, key: o.Key}
		if o.Attempt == 1 && dies() {
			_, _, err = p.ask(ctx, "solver", []chatMessage{{Role: "user", Content: text("Is anybody there?")}}, nil)
			if err != nil {
				return err
			}
			continue
		}
		stop := renewing(ctx, url+"/rollouts/"+o.ID+"/renew", o.Key)
		answer, ok, err := p.converse(ctx, "planner", row.Question)
		stop()
		if err != nil && ctx.Err() == nil {
			return err
		}
		result := map[string]any{"answer": answer}
		if !ok {
			result = map[string]any{"answer": "", "format": false}
		}
		if status, err := request(ctx, "PUT", url+"/rollouts/"+o.ID+"/result", o.Key, result, nil); ctx.Err() == nil && (err != nil || status != 204) {
			return fmt.Errorf("result of %s: %d %v", o.ID, status, err)
		}
	}
	return nil
}

// renewing renews a lease until stop is called.
func renewing(ctx context.Context, url, key string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-time.After(300 * time.Millisecond):
				_, _ = request(ctx, "POST", url, key, nil, nil)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-over }
}

// TestProgramEqualsConversation runs the team's conversations through the gateway in eight programs at a
// time; two are lost in the middle. The run has the same weights and numbers as with our own conversations.
func TestProgramEqualsConversation(t *testing.T) {
	own := t.TempDir()
	wanted := mustTrain(t, wordProblems(t, own, "eval.every=3"), trainer.TrainOptions{})
	if v := wanted.find(t, "step", 2, "solver"); v.Values["trajectories"] == 0 || v.Values["grad_norm"] == 0 {
		t.Fatalf("the solver learned nothing: %v", v.Values)
	}
	dir := t.TempDir()
	t.Setenv("T", leaseToken)
	cfg := wordProblems(t, dir, "eval.every=3", "task.program.elsewhere=true", "gateway.token_env=T", "gateway.listen=127.0.0.1:0", "task.program.lease=15s")
	var console output
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var machines errgroup.Group
	var leases atomic.Int64
	for range 8 {
		machines.Go(func() error {
			eventually(t, "the gateway has an address", func() bool { return console.address() != "" || ctx.Err() != nil })
			err := machine(ctx, t, cfg, console.address(), func() bool { n := leases.Add(1); return n == 3 || n == 20 })
			if err != nil {
				cancel()
			}
			return err
		})
	}
	seen := &recorder{}
	err := trainer.TrainAndReport(ctx, cfg, trainer.TrainOptions{Observer: seen}, &console)
	cancel()
	if failed := machines.Wait(); err != nil || failed != nil {
		t.Fatalf("%v, programs: %v\n%s", err, failed, seen)
	}
	sameNumbers(t, seen.numbers(), wanted.numbers())
	for _, run := range []*recorder{seen, wanted} {
		main := run.find(t, "eval", 3, "planner")
		costAgrees(t, main.Scores, main, run.find(t, "eval", 3, "solver"))
	}
	for step := int64(1); step <= 3; step++ {
		sameWeights(t, digests(t, dir, step), digests(t, own, step))
	}
	if n := leases.Load(); n < 48 {
		t.Errorf("%d leases for 48 rollouts", n)
	}
}

// TestProgramsThatFail checks that a program that fails, prints nothing or exceeds its time
// does not get a reward of 0: its rollout is removed. Too many removed rollouts end the run.
func TestProgramsThatFail(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"dies":    {"echo no such file >&2; exit 3", "exit status 3: no such file"},
		"silent":  {"true", "printed nothing"},
		"slow":    {"sleep 60", "longer than"},
		"reports": {`echo '{"error": "the API is down"}'`, "the API is down"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := wordProblems(t, t.TempDir(), "run.steps=4", "cold_start.demonstrations=none", `task.program.command=["sh", "-c", "`+strings.ReplaceAll(c.script, `"`, `\"`)+`"]`,
				"task.program.timeout=1s", "task.program.parallel=16", "task.queries_per_step=1")
			start := time.Now()
			err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "grpo.max_removed") {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			seen := &recorder{}
			// One step is too few to be refused; nothing is trained because all rollouts are removed.
			cfg.Run.Steps, cfg.Run.Dir = 1, config.Path(t.TempDir())
			err = trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen})
			if want := "planner: all 4 rollouts of 1 step had no score and were removed"; !errors.Is(err, trainer.ErrNothingTrained) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "equal") ||
				strings.Contains(err.Error(), "never called") || !strings.Contains(seen.String(), c.want) {
				t.Errorf("one step: %v, notes: %s", err, seen)
			}
		})
	}
}
