package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

var demonstrated = []DemonstratedTurn{
	{Text: "Twice.\n" + callText("echo", `{"text": "a"}`) + "\n" + callText("echo", `{"text": "b"}`), Results: []string{"a!", "b!"}},
	{Text: callText("solver", `{"task": "1+1"}`), Results: []string{"two"}},
	{Text: "2"},
}

func callText(name, arguments string) string {
	return "<tool_call>\n" + `{"name": "` + name + `", "arguments": ` + arguments + "}\n</tool_call>"
}

func echo() tool.Tool {
	return tool.Func("echo", "Repeats.", "text", "what to repeat", func(_ context.Context, text string) (string, error) { return text + "!", nil })
}

// TestDemonstrationIsTheConversation: a demonstration has the tokens and the mask of the
// trajectory of the same conversation. One of its turns makes two calls.
func TestDemonstrationIsTheConversation(t *testing.T) {
	eachTokenizer(t, func(t *testing.T, _ string, tok *tokenizer.Tokenizer) {
		c := newTestChat(t, ChatOptions{Tokenizer: tok, System: "Be brief.", SubAgents: []SubAgent{solver}, Tools: []tool.Tool{echo()}})
		engine := &scripted{t: t}
		for _, turn := range demonstrated {
			engine.turns = append(engine.turns, scriptedTurn{tokens: append(tok.Encode(turn.Text), c.template.stops[0])})
		}
		held, err := Run(t.Context(), Spec{Key: policy.Key{Query: "q", Agent: "planner"}, Main: true, Task: "What is 1+1?", Dialect: c},
			Env{Policy: engine, Tools: map[string]tool.Tool{"echo": echo()}, Delegate: func(context.Context, Delegation) (string, error) { return "two", nil }})
		if err != nil || !held.FormatValid {
			t.Fatalf("%+v, %v", held, err)
		}
		tokens, sampled, err := c.Demonstrate("What is 1+1?", demonstrated)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(tokens, held.Tokens) || !slices.Equal(sampled, held.Sampled) {
			t.Errorf("got demonstration %q\nwant trajectory %q", c.Text(tokens), c.Text(held.Tokens))
		}
	})
}

// TestDemonstratedTurnsEndAsInTemplate: a demonstrated turn ends with the token that the template prints after a turn. The first token
// that a base model's configuration lists ends a text instead.
func TestDemonstratedTurnsEndAsInTemplate(t *testing.T) {
	files := golden.Folder(t, golden.File(t, "tokenizer", "qwen2_5"), "tokenizer.json", "tokenizer_config.json")
	const eos = `"eos_token": "%s"`
	files["tokenizer_config.json"] = []byte(strings.Replace(string(files["tokenizer_config.json"]), fmt.Sprintf(eos, "<|im_end|>"), fmt.Sprintf(eos, "<|endoftext|>"), 1))
	tok, err := tokenizer.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	c := newTestChat(t, ChatOptions{Tokenizer: tok})
	tokens, _, err := c.Demonstrate("1+1?", []DemonstratedTurn{{Text: "2"}})
	if err != nil || !strings.HasSuffix(c.Text(tokens), "2<|im_end|>") || !slices.Contains(c.Stops().IDs, tok.Encode("<|endoftext|>")[0]) {
		t.Errorf("got demonstration %q, error %v", c.Text(tokens), err)
	}
}

func TestDemonstrationRefuses(t *testing.T) {
	c := newTestChat(t, ChatOptions{Tokenizer: tokenizertest.Golden(t, "qwen3"), SubAgents: []SubAgent{solver}, Tools: []tool.Tool{echo()}})
	ask := callText("echo", `{"text": "a"}`)
	for want, turns := range map[string][]DemonstratedTurn{
		`turn 1: there is no tool "oracle"`:                {{callText("oracle", "{}"), []string{"x"}}, {"2", nil}},
		`turn 2: there is no tool "oracle"`:                {{ask, []string{"x"}}, {callText("oracle", "{}"), nil}},
		"the arguments of echo do not fit":                 {{callText("echo", `{"word": "a"}`), []string{"x"}}, {"2", nil}},
		"turn 1: it makes 1 call(s), but 2 result(s)":      {{ask, []string{"x", "y"}}, {"2", nil}},
		"turn 1: it makes 2 call(s), but 1 result(s)":      {{ask + ask, []string{"x"}}, {"2", nil}},
		"turn 1: it makes 1 call(s), but 0 result(s)":      {{ask, nil}, {"2", nil}},
		"turn 1: 1 result(s) follow it, but it makes no":   {{"Hm.", []string{"x"}}, {"2", nil}},
		"turn 1: it makes no call, which ends the convers": {{"Hm.", nil}, {"2", nil}},
		"turn 2: 1 result(s) follow it, but it makes no c": {{ask, []string{"x"}}, {"2", []string{"y"}}},
	} {
		if _, _, err := c.Demonstrate("q", turns); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if _, _, err := c.Demonstrate("q", []DemonstratedTurn{{Text: ask}}); err != nil {
		t.Errorf("a call without a result: %v", err)
	}
}
