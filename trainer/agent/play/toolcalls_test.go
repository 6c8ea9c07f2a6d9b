package play

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// sampledText returns the trained part of a demonstration.
func sampledText(p *Player, t agent.Trajectory) string {
	var ids []int32
	for i, id := range t.Tokens {
		if t.Sampled[i] {
			ids = append(ids, id)
		}
	}
	return p.Tokenizer.Decode(ids, false)
}

const (
	toolCalls  = `"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search", "arguments": %s}}, {"id": "c2", "type": "function", "function": {"name": "search", "arguments": "{\"query\": \"nest\"}"}}]`
	chatOfCall = `{"agent": "searcher", "messages": [{"role": "user", "content": "Where does it nest?"}, %s]}`
	twoTools   = `{"role": "tool", "tool_call_id": "c1", "content": "one"}, {"role": "tool", "tool_call_id": "c2", "name": "search", "content": "two"}, {"role": "assistant", "content": "On Lomm."}`
)

// TestToolCallsAreLearned: a conversation has the same tokens in all formats of files, and as a
// chat whose calls are written in its content.
func TestToolCallsAreLearned(t *testing.T) {
	p := searcher(t)
	written, err := demonstrate(t, p, strings.ReplaceAll(twoResults, "\n\t\t", ""))
	if err != nil || len(written) != 1 {
		t.Fatal(len(written), err)
	}
	object := fmt.Sprintf(toolCalls, `{"query": "murre"}`)
	turn := `{"role": "assistant", "content": null, ` + object + `}, `
	for name, line := range map[string]string{
		"OpenAI's":           fmt.Sprintf(chatOfCall, `{"role": "assistant", "content": null, `+fmt.Sprintf(toolCalls, `"{\"query\": \"murre\"}"`)+`}, `+twoTools),
		"TRL's":              fmt.Sprintf(chatOfCall, `{"role": "assistant", `+object+`}, `+twoTools),
		"an empty content":   fmt.Sprintf(chatOfCall, `{"role": "assistant", "content": "", `+object+`}, `+twoTools),
		"parts":              fmt.Sprintf(chatOfCall, turn+`{"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]}, `+twoTools[strings.Index(twoTools, `{"role": "tool", "tool_call_id": "c2"`):]),
		"results turned":     fmt.Sprintf(chatOfCall, turn+`{"role": "tool", "tool_call_id": "c2", "content": "two"}, {"role": "tool", "tool_call_id": "c1", "content": "one"}, {"role": "assistant", "content": "On Lomm."}`),
		"nulls of a table":   fmt.Sprintf(chatOfCall, `{"role": "assistant", "content": null, "name": null, "tool_call_id": null, "reasoning_content": null, "refusal": null, "weight": null, `+object+`}, `+twoTools),
		"tools of a row":     strings.Replace(fmt.Sprintf(chatOfCall, turn+twoTools), `"messages"`, `"tools": [{"type": "function", "function": {"name": "search", "parameters": {}}}], "messages"`, 1),
		"tools as a text":    strings.Replace(fmt.Sprintf(chatOfCall, turn+twoTools), `"messages"`, `"tools": "[{\"name\": \"search\"}]", "messages"`, 1),
		"a weight of 1":      strings.Replace(fmt.Sprintf(chatOfCall, turn+twoTools), `"content": null`, `"content": null, "weight": 1`, 1),
		"ShareGPT's":         `{"agent": "searcher", "conversations": [{"from": "human", "value": "Where does it nest?"}, {"from": "function_call", "value": "[{\"name\": \"search\", \"arguments\": {\"query\": \"murre\"}}, {\"name\": \"search\", \"arguments\": {\"query\": \"nest\"}}]"}, {"from": "observation", "value": "one"}, {"from": "observation", "value": "two"}, {"from": "gpt", "value": "On Lomm."}]}`,
		"both roles":         `{"agent": "searcher", "conversations": [{"role": "user", "from": "human", "value": "Where does it nest?"}, {"from": "function_call", "value": "[{\"name\": \"search\", \"arguments\": {\"query\": \"murre\"}}, {\"name\": \"search\", \"arguments\": {\"query\": \"nest\"}}]"}, {"from": "observation", "value": "one"}, {"from": "observation", "value": "two"}, {"role": "assistant", "from": "gpt", "value": "On Lomm."}]}`,
		"ms-swift's":         `{"agent": "searcher", "messages": [{"role": "user", "content": "Where does it nest?"}, {"role": "tool_call", "content": "[{\"name\": \"search\", \"arguments\": {\"query\": \"murre\"}}, {\"name\": \"search\", \"arguments\": {\"query\": \"nest\"}}]"}, {"role": "tool_response", "content": "one"}, {"role": "tool_response", "content": "two"}, {"role": "assistant", "content": "On Lomm."}]}`,
		"lists as texts":     fmt.Sprintf(`{"agent": "searcher", "messages": %q}`, `[{"role": "user", "content": "Where does it nest?"}, {"role": "assistant", "content": "", "tool_calls": `+fmt.Sprintf("%q", "["+strings.SplitN(object, "[", 2)[1])+`}, `+twoTools+`]`),
		"empty texts":        strings.Replace(fmt.Sprintf(chatOfCall, `{"role": "assistant", "content": "", "name": "", "from": "", `+object+`}, `+twoTools), `"role": "user"`, `"role": "user", "name": "", "tool_calls": "", "from": null, "value": null`, 1),
		"a byte order mark":  "\ufeff" + fmt.Sprintf(chatOfCall, turn+twoTools),
		"blank lines":        "\n" + fmt.Sprintf(chatOfCall, turn+twoTools) + "\n\n",
		"a JSON array":       "[\n" + fmt.Sprintf(chatOfCall, turn+twoTools) + "]",
		"Windows' line ends": fmt.Sprintf(chatOfCall, turn+twoTools) + "\r\n\r\n",
	} {
		got, err := demonstrate(t, p, line)
		if err != nil || len(got) != 1 {
			t.Errorf("%s: got %d demonstrations, error %v", name, len(got), err)
			continue
		}
		if !slices.Equal(got[0].Tokens, written[0].Tokens) || !slices.Equal(got[0].Sampled, written[0].Sampled) {
			t.Errorf("%s: got %q, want %q", name, p.Tokenizer.Decode(got[0].Tokens, false), p.Tokenizer.Decode(written[0].Tokens, false))
		}
	}
}

// TestLearnedTurns checks the trained part of turns with thinking, content next to calls, and weights.
func TestLearnedTurns(t *testing.T) {
	p := searcher(t)
	call := `"tool_calls": [{"function": {"name": "search", "arguments": {"query": "nest"}}}]`
	printed := "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"nest\"}}\n</tool_call>"
	result := `{"role": "tool", "content": "two"}`
	for messages, want := range map[string]string{
		`{"role": "assistant", "content": "Let me see.", ` + call + `}`:                                                                                "Let me see.\n" + printed + "<|im_end|>",
		`{"role": "assistant", "content": null, "function_call": {"name": "search", "arguments": "{\"query\": \"nest\"}"}}`:                            printed + "<|im_end|>",
		`{"role": "assistant", "reasoning_content": "Hm.", "content": "Two."}`:                                                                         "<think>\nHm.\n</think>\n\nTwo.<|im_end|>",
		`{"role": "assistant", "thinking": "Hm.", "content": null, ` + call + `}`:                                                                      "<think>\nHm.\n</think>\n\n" + printed + "<|im_end|>",
		`{"role": "assistant", "content": null, "weight": 0, ` + call + `}, ` + result + `, {"role": "assistant", "content": "Two."}`:                  "Two.<|im_end|>",
		`{"role": "assistant", "content": null, "weight": 1, ` + call + `}, ` + result + `, {"role": "assistant", "content": "Two.", "weight": 0}`:     printed + "<|im_end|>",
		`{"role": "assistant", "content": "` + strings.ReplaceAll(strings.ReplaceAll(printed, `"`, `\"`), "\n", `\n`) + `"}`:                           printed + "<|im_end|>",
		`{"role": "assistant", "reasoning": "First.", ` + call + `}, ` + result + `, {"role": "assistant", "content": "Two.", "reasoning": "Second."}`: "<think>\nFirst.\n</think>\n\n" + printed + "<|im_end|><think>\nSecond.\n</think>\n\nTwo.<|im_end|>",
	} {
		got, err := demonstrate(t, p, fmt.Sprintf(chatOfCall, messages))
		if err != nil || len(got) != 1 {
			t.Errorf("%s: got %d demonstrations, error %v", messages, len(got), err)
			continue
		}
		if text := sampledText(p, got[0]); text != want {
			t.Errorf("%s: got the trained text %q, want %q", messages, text, want)
		}
	}
}

// TestUnsupportedFieldsAreRefused: a line with a field that cannot be learned from is refused, and the error names the field.
func TestUnsupportedFieldsAreRefused(t *testing.T) {
	p := searcher(t)
	call := func(c string) string { return `{"role": "assistant", "content": null, "tool_calls": [` + c + `]}` }
	good := call(`{"id": "c1", "function": {"name": "search", "arguments": {"query": "nest"}}}`)
	for messages, want := range map[string]string{
		call(`{"name": "search", "args": {"query": "nest"}}`):                                                    `message 2: call 1: the arguments of search are under "args": put them under "arguments"`,
		call(`{"function": {"name": "search", "parameters": {}}}`):                                               "do not fit its schema",
		`{"role": "assistant", "content": null, "tool_calls": {"name": "search"}}`:                               `message 2: "tool_calls" must be a list`,
		`{"role": "assistant", "content": null}`:                                                                 "message 2: it has neither content nor calls",
		`{"role": "assistant"}`:                                                                                  "message 2: it has neither content nor calls",
		`{"role": "assistant", "content": null, "tool_calls": []}`:                                               "message 2: it has neither content nor calls",
		`{"role": "assistant", "content": "a", "audio": {"id": "x"}}`:                                            `message 2: a message of the role assistant: "audio" is not supported`,
		`{"role": "assistant", "content": "a", "name": "bob"}`:                                                   `"name" is not supported`,
		`{"role": "assistant", "content": "a", "refusal": "no"}`:                                                 `"refusal" is not supported`,
		`{"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]}`:                             `part 1 has the type "image_url"`,
		`{"role": "assistant", "content": 7}`:                                                                    `message 2: "content"`,
		`{"role": "assistant", "content": "a", "weight": 0.5}`:                                                   `"weight" 0.5 is not supported: use 0 or 1`,
		`{"role": "assistant", "content": "a", "weight": 0}`:                                                     "every turn has the weight 0",
		good + `, {"role": "tool", "tool_call_id": "c7", "content": "x"}, {"role": "assistant", "content": "a"}`: `the tool_call_id "c7" does not name`,
		good + `, {"role": "tool", "name": "lookup", "content": "x"}, {"role": "assistant", "content": "a"}`:     `a result names the tool "lookup", but its call is of "search"`,
		good + `, {"role": "tool"}`:                                                                              `message 3: it has no "content"`,
		good + `, {"role": "tool", "content": "x", "weight": 1}`:                                                 `message of the role tool has the "weight" 1`,
		call(`{"function": {"name": "search", "arguments": "{query"}}`):                                          "the arguments of search are not a JSON object",
		call(`{"function": {"arguments": {}}}`):                                                                  `it has no "name" of a function`,
		call(`{"type": "custom", "custom": {"name": "search"}}`):                                                 `its type "custom" is not supported`,
		call(`{"function": {"name": "lookup", "arguments": {"query": "x"}}}`):                                    `there is no tool "lookup"`,
		call(`{"function": {"name": "search", "arguments": {"word": "x"}}}`):                                     "the arguments of search do not fit",
	} {
		if _, err := demonstrate(t, p, fmt.Sprintf(chatOfCall, messages)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "chats.jsonl:1") {
			t.Errorf("%s: got %v, want an error with %q", messages, err, want)
		}
	}
	row := fmt.Sprintf(chatOfCall, `{"role": "assistant", "content": "a"}`)
	for extra, want := range map[string]string{
		`"tools": [{"function": {"name": "lookup"}}]`: `it lists the tool "lookup", which the agent searcher does not have: the agent's tools are search`,
		`"tools": [{"function": {}}]`:                 `"tools": definition 1 has no name`,
		`"functions": [{"name": "search"}]`:           `"functions" is not supported`,
		`"system": "Be brief."`:                       "the system prompt comes from the configuration",
		`"images": ["a.png"]`:                         `"images" is not supported`,
		`"weight": 0.5`:                               `"weight" is not supported`,
		`"conversations": [{"from": "human"}]`:        "keep one",
	} {
		if _, err := demonstrate(t, p, strings.Replace(row, `"messages"`, extra+`, "messages"`, 1)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", extra, err, want)
		}
	}
	if _, err := demonstrate(t, p, strings.Replace(row, `"messages"`, `"id": "a", "source": "web", "tools": [], "messages"`, 1)); err != nil {
		t.Errorf("other keys of a row: got error %v", err)
	}
}

// TestCallIsAlone checks that no part of a segment is lost if it has a Call.
func TestCallIsAlone(t *testing.T) {
	call := &task.Delegation{Agent: "solver", Subtask: "2 + 2?"}
	if text, err := textOf(task.Segment{Sampled: true, Call: call}, nil); err != nil || text != agent.DelegationText("solver", "2 + 2?") {
		t.Errorf("%q, %v", text, err)
	}
	for _, s := range []task.Segment{{Call: call, Text: "I ask."}, {Call: call, Thinking: "hm"}, {Call: call, Calls: []task.FunctionCall{{Name: "add"}}}} {
		if text, err := textOf(s, nil); err == nil {
			t.Errorf("%+v is written as %q", s, text)
		}
	}
}
