package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/recorded"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

// stage is a conversation in SmolLM2's dialect of an agent that has a calculator and can delegate to a solver.
type stage struct {
	tok    *tokenizer.Tokenizer
	chat   *Chat
	engine *scripted
	spec   Spec
	env    Env
}

func newStage(t *testing.T, turns ...scriptedTurn) *stage {
	t.Helper()
	tok := tokenizertest.Golden(t, "smollm2")
	s := &stage{tok: tok, engine: &scripted{t: t, turns: turns}}
	s.chat = newTestChat(t, ChatOptions{Tokenizer: tok, SubAgents: []SubAgent{solver}, Tools: []tool.Tool{tool.Calculator()}})
	s.spec = Spec{Key: policy.Key{Query: "q7", Rollout: 3, Agent: "planner"}, Main: true, Task: "What is 2 + 2?", Dialect: s.chat}
	s.env = Env{
		Policy: s.engine,
		Tools:  map[string]tool.Tool{"calculator": tool.Calculator()},
		Delegate: func(_ context.Context, d Delegation) (string, error) {
			return fmt.Sprintf("%s[%d] on %s", d.Agent, d.Index, d.Task), nil
		},
	}
	return s
}

// endedTurn returns a turn that ends with the end-of-turn token.
func endedTurn(t *testing.T, text string) scriptedTurn {
	t.Helper()
	return scriptedTurn{tokens: tokenizertest.Golden(t, "smollm2").Encode(text + "<|im_end|>")}
}

func delegation(task string) string {
	return `<tool_call>{"name": "solver", "arguments": {"task": "` + task + `"}}</tool_call>`
}

func calculation(expression string) string {
	return `<tool_call>{"name": "calculator", "arguments": {"expression": "` + expression + `"}}</tool_call>`
}

// run runs the conversation and checks the invariants of a trajectory.
func (s *stage) run(t *testing.T) Trajectory {
	t.Helper()
	traj, err := Run(t.Context(), s.spec, s.env)
	if err != nil {
		t.Fatal(err)
	}
	s.check(t, traj)
	return traj
}

func (s *stage) check(t *testing.T, traj Trajectory) {
	t.Helper()
	if err := traj.Check(); err != nil {
		t.Fatal(err)
	}
	var sampled []int32
	for i, turn := range traj.Turns {
		if turn.Sampled != (i%2 == 1) {
			t.Errorf("turn %d: got sampled=%v, want %v", i, turn.Sampled, i%2 == 1)
		}
		if got := s.tok.Decode(traj.Tokens[turn.From:turn.To], false); got != turn.Text {
			t.Errorf("turn %d: got text %q, want %q as its tokens decode", i, turn.Text, got)
		}
		if turn.Sampled {
			sampled = append(sampled, traj.Tokens[turn.From:turn.To]...)
		}
	}
	var scripted []int32
	for n := range min(len(s.engine.requests), len(s.engine.turns)) {
		scripted = append(scripted, s.engine.turns[n].tokens...)
	}
	if len(sampled) > len(scripted) || !slices.Equal(sampled, scripted[:len(sampled)]) {
		t.Error("the sampled tokens differ from the engine's")
	}
	for i, isSampled := range traj.Sampled {
		if (traj.LogProbs[i] != 0) != isSampled {
			t.Fatalf("token %d: sampled=%v, log-prob %v", i, isSampled, traj.LogProbs[i])
		}
	}
	b, err := json.Marshal(traj)
	if err != nil {
		t.Fatal(err)
	}
	var back Trajectory
	if err := json.Unmarshal(b, &back); err != nil || back.ID != traj.ID || !slices.Equal(back.LogProbs, traj.LogProbs) {
		t.Errorf("the trajectory changes when it is written as JSON and read again: %v", err)
	}
}

func TestRunAnswersAtOnce(t *testing.T) {
	s := newStage(t, endedTurn(t, "It is 4."))
	traj := s.run(t)
	if traj.ID != "q7/3" || traj.Answer != "It is 4." || !traj.FormatValid || traj.Finish != FinishAnswer || len(traj.Turns) != 2 {
		t.Errorf("%+v", traj)
	}
	last := traj.Turns[1]
	if end := traj.Tokens[last.To-1]; !slices.Contains(s.chat.template.stops, end) || !traj.Sampled[last.To-1] {
		t.Errorf("the stop token %d is not marked as sampled", end)
	}
	if traj.LogProbs[last.From] != -1 || traj.LogProbs[last.From+1] != -1-1.0/64 {
		t.Errorf("log-probs %v differ from the engine's", traj.LogProbs[last.From:last.To])
	}
}

// TestRunNumbersCalls: the calls of a tool are numbered in the order of the text, also if a
// turn makes several at once. So a limit refuses the same calls every time.
func TestRunNumbersCalls(t *testing.T) {
	s := newStage(t, endedTurn(t, calculation("1")+calculation("2")), endedTurn(t, calculation("3")+calculation("4")), endedTurn(t, "done"))
	s.env.Tools["calculator"] = tool.Limited(tool.Calculator(), tool.Limits{Calls: 3})
	for range 2 { // each conversation counts from the beginning
		traj := s.run(t)
		if seen := traj.Turns[4].Text; !strings.Contains(traj.Turns[2].Text, "2") || !strings.Contains(seen, "3") || !strings.Contains(seen, "calculator was called 3 times") || strings.Contains(seen, "4") {
			t.Errorf("got answers %q and %q, want calls 1 to 3 answered and the fourth refused", traj.Turns[2].Text, seen)
		}
		s.engine.requests = nil
	}
}

// TestRunReplayMisses: if a replay has no recorded answer to a call, the conversation ends with an error that names the tool.
func TestRunReplayMisses(t *testing.T) {
	cache, err := recorded.Open(t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t, endedTurn(t, calculation("1+1")))
	s.env.Tools["calculator"] = tool.Limited(tool.Cached(tool.Calculator(), cache, "calculator", nil), tool.Limits{Bytes: 10})
	if traj, err := Run(t.Context(), s.spec, s.env); !errors.Is(err, recorded.ErrMissing) || !strings.Contains(err.Error(), "tool calculator") {
		t.Errorf("got finish %s and error %v, want ErrMissing with the tool's name", traj.Finish, err)
	}
}

func TestRunSubAgentID(t *testing.T) {
	s := newStage(t, endedTurn(t, "4"))
	s.spec.Main, s.spec.Key.Agent, s.spec.Key.Invocation = false, "solver", 2
	if traj := s.run(t); traj.ID != "q7/3/solver/2" || traj.Invocation != 2 {
		t.Errorf("got id %s and invocation %d", traj.ID, traj.Invocation)
	}
}

func TestRunSeveralTurns(t *testing.T) {
	s := newStage(t, endedTurn(t, delegation("first")+calculation("2 + 2")), endedTurn(t, "Hm. "+delegation("second")), endedTurn(t, "4"))
	traj := s.run(t)
	if traj.Calls["solver"] != 2 || traj.Malformed != 0 || traj.Answer != "4" || len(traj.Turns) != 6 {
		t.Fatalf("%+v", traj)
	}
	first := traj.Turns[2].Text
	if i, j := strings.Index(first, "solver[0] on first"), strings.Index(first, "<tool_response>\n4\n"); i < 0 || j < i {
		t.Errorf("answers to the first turn: got %q", first)
	}
	if second := traj.Turns[4].Text; !strings.Contains(second, "solver[1] on second") {
		t.Errorf("answer to the second turn: got %q", second)
	}
	key := s.spec.Key
	key.Root = policy.Root(traj.Tokens[:traj.Turns[0].To], 0)
	for n, r := range s.engine.requests {
		if r.Key != key {
			t.Errorf("request %d: got key %+v", n, r.Key)
		}
	}
}

// TestRunCallsConcurrentlyInOrder: the calls of a turn run at the same time, and the answers have the order
// of the calls. Here each call waits until all others have started, and the calls end in reverse order.
func TestRunCallsConcurrentlyInOrder(t *testing.T) {
	const n = 3
	s := newStage(t, endedTurn(t, delegation("a")+delegation("b")+delegation("c")), endedTurn(t, "done"))
	var started sync.WaitGroup
	started.Add(n)
	ended := make([]chan struct{}, n+1)
	for i := range ended {
		ended[i] = make(chan struct{})
	}
	close(ended[n])
	s.env.Delegate = func(_ context.Context, d Delegation) (string, error) {
		started.Done()
		started.Wait()
		<-ended[d.Index+1]
		close(ended[d.Index])
		return fmt.Sprintf("answer %d to %s", d.Index, d.Task), nil
	}
	observed := s.run(t).Turns[2].Text
	a, b, c := strings.Index(observed, "answer 0 to a"), strings.Index(observed, "answer 1 to b"), strings.Index(observed, "answer 2 to c")
	if a < 0 || b < a || c < b {
		t.Errorf("answers out of order: %q", observed)
	}
}

func TestRunMalformedCalls(t *testing.T) {
	turns := []scriptedTurn{
		endedTurn(t, `<tool_call>{"name": "solver"`),
		endedTurn(t, `<tool_call>{"name": "oracle", "arguments": {}}</tool_call>`+calculation("1 + 1")),
		endedTurn(t, "2"),
	}
	traj := newStage(t, turns...).run(t)
	if traj.Malformed != 2 || traj.Finish != FinishAnswer || traj.FormatValid {
		t.Errorf("malformed %d, finish %s, valid %v", traj.Malformed, traj.Finish, traj.FormatValid)
	}
	if text := traj.Turns[2].Text; !strings.Contains(text, "error: the tool call is not valid JSON") {
		t.Errorf("answer to bad JSON: %q", text)
	}
	text := traj.Turns[4].Text
	if i, j := strings.Index(text, `error: there is no tool "oracle"`), strings.Index(text, "<tool_response>\n2\n"); i < 0 || j < i {
		t.Errorf("answers to one bad and one good call: %q", text)
	}
}

func TestRunToolErrorIsText(t *testing.T) {
	s := newStage(t, endedTurn(t, calculation("1 / 0")), endedTurn(t, "sorry"))
	traj := s.run(t)
	if !strings.Contains(traj.Turns[2].Text, "error: division by zero") || !traj.FormatValid || traj.Malformed != 0 {
		t.Errorf("%+v", traj)
	}
}

func TestRunEmptyAnswerIsInvalid(t *testing.T) {
	if traj := newStage(t, endedTurn(t, " \n")).run(t); traj.FormatValid || traj.Finish != FinishAnswer {
		t.Errorf("valid=%v finish=%s", traj.FormatValid, traj.Finish)
	}
}

func TestRunLimits(t *testing.T) {
	call := delegation("x")
	prompt, _, err := newStage(t).chat.Prompt("What is 2 + 2?")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		limits  Limits
		context int
		turns   []string
		finish  string
		sampled int // turns
	}{
		"turns":        {Limits{Turns: 2}, 0, []string{call, call, "4"}, FinishTurns, 2},
		"turn tokens":  {Limits{TurnTokens: 3}, 0, []string{"one two three four five"}, FinishLength, 1},
		"tokens":       {Limits{Tokens: len(prompt) + 3}, 0, []string{"one two three four five"}, FinishTokens, 1},
		"no tokens":    {Limits{Tokens: len(prompt)}, 0, []string{"one"}, FinishTokens, 0},
		"context":      {Limits{}, len(prompt) + 3, []string{"one two three four five"}, FinishContext, 1},
		"no context":   {Limits{}, len(prompt) - 1, []string{"one"}, FinishContext, 0},
		"context next": {Limits{}, len(prompt) + 30, []string{call, "4"}, FinishContext, 1},
		"none reached": {Limits{Turns: 2, TurnTokens: 50, Tokens: 1000, Wall: time.Hour}, 0, []string{call, "4"}, FinishAnswer, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			for _, text := range tc.turns {
				s.engine.turns = append(s.engine.turns, endedTurn(t, text))
			}
			s.engine.limit, s.spec.Limits = tc.context, tc.limits
			traj, err := Run(t.Context(), s.spec, s.env)
			if err != nil {
				t.Fatal(err)
			}
			if err := traj.Check(); err != nil {
				t.Fatal(err)
			}
			sampled := 0
			for _, turn := range traj.Turns {
				if turn.Sampled {
					sampled++
				}
			}
			if traj.Finish != tc.finish || traj.FormatValid != (tc.finish == FinishAnswer) || sampled != tc.sampled {
				t.Errorf("finish %s after %d turns, valid=%v; want %s after %d", traj.Finish, sampled, traj.FormatValid, tc.finish, tc.sampled)
			}
			if traj.Finish != FinishAnswer && traj.Answer != "" {
				t.Errorf("a conversation that was cut off: got answer %q, want none", traj.Answer)
			}
			if limit := tc.limits.Tokens; limit > 0 && traj.Finish == FinishTokens && len(traj.Tokens) > limit {
				t.Errorf("got %d tokens, want at most %d", len(traj.Tokens), limit)
			}
		})
	}
}

func TestRunCallsPerTurn(t *testing.T) {
	s := newStage(t, endedTurn(t, strings.Repeat(calculation("1"), 5)), endedTurn(t, "1"))
	s.spec.Limits.CallsPerTurn = 2
	traj := s.run(t)
	text := traj.Turns[2].Text
	if strings.Count(text, "<tool_response>") != 3 || !strings.Contains(text, "error: 3 call(s) not executed: at most 2 calls a turn") || traj.Malformed != 3 {
		t.Errorf("malformed %d, observed %q", traj.Malformed, text)
	}
}

func TestRunWallTime(t *testing.T) {
	t.Run("sampling", func(t *testing.T) {
		turn := endedTurn(t, "slow slow slow")
		turn.wait = true
		s := newStage(t, turn)
		s.spec.Limits.Wall = 20 * time.Millisecond
		if traj := s.run(t); traj.Finish != FinishWall || traj.FormatValid || traj.SampledTokens() != len(turn.tokens) {
			t.Errorf("%+v", traj)
		}
	})
	t.Run("delegation", func(t *testing.T) {
		s := newStage(t, endedTurn(t, delegation("slow")))
		s.spec.Limits.Wall = 20 * time.Millisecond
		s.env.Delegate = func(ctx context.Context, _ Delegation) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}
		if traj := s.run(t); traj.Finish != FinishWall || traj.Calls["solver"] != 1 {
			t.Errorf("%+v", traj)
		}
	})
	t.Run("tool", func(t *testing.T) {
		s := newStage(t, endedTurn(t, calculation("1")))
		s.spec.Limits.Wall = 20 * time.Millisecond
		s.env.Tools["calculator"] = tool.Func("calculator", "", "expression", "", func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		})
		if traj := s.run(t); traj.Finish != FinishWall || len(traj.Turns) != 2 {
			t.Errorf("%+v", traj)
		}
	})
}

func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newStage(t, endedTurn(t, delegation("a")+delegation("b")))
	s.spec.Limits.Wall = time.Hour
	var once sync.Once
	s.env.Delegate = func(ctx context.Context, _ Delegation) (string, error) {
		once.Do(cancel)
		<-ctx.Done()
		return "", ctx.Err()
	}
	traj, err := Run(ctx, s.spec, s.env)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if traj.Finish != "" || traj.FormatValid {
		t.Errorf("a cancelled conversation: got %+v, want an unfinished one", traj)
	}
	s.check(t, traj)
}

func TestRunErrorsOfTheMachinery(t *testing.T) {
	broken := errors.New("device lost")
	with := func(edit func(*scriptedTurn)) scriptedTurn {
		turn := endedTurn(t, "some words")
		edit(&turn)
		return turn
	}
	completion := func(edit func(*policy.Completion)) scriptedTurn {
		return with(func(s *scriptedTurn) { s.edit = edit })
	}
	for name, tc := range map[string]struct {
		turns []scriptedTurn
		want  string
	}{
		"engine":            {[]scriptedTurn{{err: broken}}, "device lost"},
		"NaN":               {[]scriptedTurn{completion(func(c *policy.Completion) { c.LogProbs[1] = float32(math.NaN()) })}, "log-prob of sampled token 1 is NaN"},
		"positive":          {[]scriptedTurn{completion(func(c *policy.Completion) { c.LogProbs[0] = 0.1 })}, "log-prob"},
		"lengths":           {[]scriptedTurn{completion(func(c *policy.Completion) { c.LogProbs = c.LogProbs[1:] })}, "log-probs"},
		"stopped on none":   {[]scriptedTurn{completion(func(c *policy.Completion) { c.Tokens, c.LogProbs = nil, nil })}, "without sampling"},
		"unknown finish":    {[]scriptedTurn{with(func(s *scriptedTurn) { s.finish = "bored" })}, "bored"},
		"cancelled by none": {[]scriptedTurn{with(func(s *scriptedTurn) { s.finish = policy.FinishCancelled })}, "the context was not cancelled"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, tc.turns...)
			if _, err := Run(t.Context(), s.spec, s.env); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "q7/3") {
				t.Errorf("error %v, want one with %q and the conversation's id", err, tc.want)
			}
		})
	}
	t.Run("store", func(t *testing.T) {
		s := newStage(t, endedTurn(t, delegation("a")))
		s.env.Delegate = func(context.Context, Delegation) (string, error) { return "", broken }
		if _, err := Run(t.Context(), s.spec, s.env); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
	t.Run("no sub-agents", func(t *testing.T) {
		s := newStage(t, endedTurn(t, delegation("a")))
		s.env.Delegate = nil
		if _, err := Run(t.Context(), s.spec, s.env); err == nil {
			t.Error("no error")
		}
	})
	t.Run("not while waiting", func(t *testing.T) {
		s := newStage(t, scriptedTurn{err: broken})
		s.spec.Limits.Wall = time.Nanosecond
		time.Sleep(time.Millisecond)
		if _, err := Run(t.Context(), s.spec, s.env); err != nil && !errors.Is(err, broken) {
			t.Error(err)
		}
	})
	t.Run("no engine", func(t *testing.T) {
		if _, err := Run(t.Context(), Spec{}, Env{}); err == nil {
			t.Error("no error")
		}
	})
}

func TestRunVersions(t *testing.T) {
	for _, tc := range []struct {
		first, second, lag int64
		fails              bool
	}{{4, 4, 0, false}, {4, 5, 0, true}, {5, 4, 0, true}, {4, 5, 1, false}, {4, 6, 1, true}} {
		a, b := endedTurn(t, delegation("x")), endedTurn(t, "4")
		a.version, b.version = tc.first, tc.second
		s := newStage(t, a, b)
		s.spec.MaxLag = tc.lag
		traj, err := Run(t.Context(), s.spec, s.env)
		if (err != nil) != tc.fails {
			t.Errorf("versions %d, %d with lag %d: got error %v", tc.first, tc.second, tc.lag, err)
		}
		if err != nil {
			if !strings.Contains(err.Error(), "max_lag") {
				t.Error(err)
			}
			continue
		}
		if traj.Version != min(tc.first, tc.second) {
			t.Errorf("turns of versions %d and %d: got version %d, want the older", tc.first, tc.second, traj.Version)
		}
	}
}

func TestRowCheck(t *testing.T) {
	good := func() Row {
		return Row{Tokens: []int32{1, 2}, Sampled: []bool{false, true}, LogProbs: []float32{0, -1},
			Turns: []Turn{{From: 0, To: 1}, {From: 1, To: 2, Sampled: true}}}
	}
	if row := good(); row.Check() != nil {
		t.Fatal(row.Check())
	}
	for name, spoil := range map[string]func(*Row){
		"mask":    func(r *Row) { r.Sampled = r.Sampled[:1] },
		"gap":     func(r *Row) { r.Turns[1].From = 2 },
		"beyond":  func(r *Row) { r.Turns[1].To = 9 },
		"short":   func(r *Row) { r.Turns = r.Turns[:1] },
		"kind":    func(r *Row) { r.Turns[1].Sampled = false },
		"reverse": func(r *Row) { r.Turns[0].To = -1 },
	} {
		row := good()
		if spoil(&row); row.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
