package worker

import (
	"context"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
)

// dividingPolicy is a policy whose every turn has three calls of the calculator that divide by zero.
type dividingPolicy struct{ tok *tokenizer.Tokenizer }

func (dividingPolicy) ContextLimit() int { return 1 << 20 }

func (d dividingPolicy) Generate(context.Context, policy.Request) (policy.Completion, error) {
	call := `<tool_call>{"name": "calculator", "arguments": {"expression": "1/0"}}</tool_call>`
	turn := d.tok.Encode(strings.Repeat(call, 3) + "<|im_end|>")
	return policy.Completion{Tokens: turn, LogProbs: make([]float32, len(turn)), Finish: policy.FinishStop}, nil
}

// TestFailingToolsAreWarnedOf: a warning names a tool that always fails, once it has been called often enough.
func TestFailingToolsAreWarnedOf(t *testing.T) {
	cfg, err := config.Load("../../../examples/research-qwen3/team.yaml", []string{"agents.searcher.tools=[calculator]", "agents.searcher.limits.max_calls_per_turn=3"})
	if err != nil {
		t.Fatal(err)
	}
	tok := tokenizertest.Golden(t, "qwen3")
	p, err := assemble.OpenPlayer(t.Context(), cfg, cfg.Agent("searcher"), openTask(t, cfg), tok, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Policy = dividingPolicy{tok}
	for turns, warned := range map[int]bool{3: false, 4: true} { // 9 and 12 calls
		p.Limits.Turns = turns
		seen := &metricstest.Recorder{}
		rp := &reports{common: &common{name: "searcher", observer: seen}, player: p}
		got, err := p.Play(t.Context(), play.Conversation{Text: "?"})
		if err != nil || got.Finish != agent.FinishTurns {
			t.Fatalf("conversation ended with %s, want %s; error %v", got.Finish, agent.FinishTurns, err)
		}
		r := metrics.Record{Counts: map[string]map[string]int64{}}
		rp.describeTools(&r)
		if n := int64(3 * turns); r.Counts[metrics.ToolCalls]["calculator"] != n || r.Counts[metrics.ToolErrors]["calculator"] != n {
			t.Errorf("%d turns: got counts %v, want %d calls and as many errors", turns, r.Counts, n)
		}
		if strings.Contains(seen.String(), "calculator failed in") != warned {
			t.Errorf("%d turns: got notes %q, want a warning: %v", turns, seen, warned)
		}
	}
}
