package play

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// searcher returns a player of an agent with a search tool, whose model uses Qwen3's template.
func searcher(t *testing.T) *Player {
	t.Helper()
	answers := map[string]string{"murre": "one", "nest": "two"}
	b := &Toolbox{}
	b.Add(tool.Func("search", "", "query", "", func(_ context.Context, q string) (string, error) { return answers[q], nil }), tool.Limits{})
	p, err := New(Options{Role: task.AgentRole{Agent: "searcher", Tools: []string{"search"}}, Tokenizer: tokenizertest.Golden(t, "qwen3"), Tools: b})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// demonstrate has the searcher learn from lines of a file.
func demonstrate(t *testing.T, p *Player, lines ...string) ([]agent.Trajectory, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "chats.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	chats := &Chats{Path: path, Agents: []string{"planner", "searcher"}}
	got, err := p.Demonstrations(chats, 100, 4096)
	return got.Trajectories, err
}

const (
	firstTurn = "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"murre\"}}\n</tool_call>\n" +
		"<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"nest\"}}\n</tool_call>"
	twoResults = `{"agent": "searcher", "messages": [{"role": "user", "content": "Where does it nest?"},
		{"role": "assistant", "content": "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"murre\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"nest\"}}\n</tool_call>"},
		{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}, {"role": "assistant", "content": "On Lomm."}]}`
)

// TestResultsOfOneTurn: two tool messages in a row are the results of one turn's two calls. The
// demonstration has the tokens of a conversation with these calls.
func TestResultsOfOneTurn(t *testing.T) {
	p := searcher(t)
	got, err := demonstrate(t, p, strings.ReplaceAll(twoResults, "\n\t\t", ""))
	if err != nil || len(got) != 1 {
		t.Fatalf("got %d demonstrations, error %v", len(got), err)
	}
	dialect, err := p.dialect()
	if err != nil {
		t.Fatal(err)
	}
	stop := dialect.Stops().IDs[0]
	p.Policy = &said{turns: [][]int32{append(p.Tokenizer.Encode(firstTurn), stop), append(p.Tokenizer.Encode("On Lomm."), stop)}}
	held, err := p.Play(t.Context(), Conversation{Text: "Where does it nest?"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got[0].Tokens, held.Tokens) || !slices.Equal(got[0].Sampled, held.Sampled) {
		t.Errorf("got demonstration %q\nwant conversation %q", p.Tokenizer.Decode(got[0].Tokens, false), p.Tokenizer.Decode(held.Tokens, false))
	}
}

// said is an engine that returns given turns.
type said struct{ turns [][]int32 }

func (s *said) ContextLimit() int { return 1 << 20 }

func (s *said) Generate(context.Context, policy.Request) (policy.Completion, error) {
	turn := s.turns[0]
	s.turns = s.turns[1:]
	return policy.Completion{Tokens: turn, LogProbs: make([]float32, len(turn)), Finish: policy.FinishStop}, nil
}

// TestDemonstrationsAreRefused: a demonstration of an unknown agent, or with a call to one, is an error with file, line and name.
func TestDemonstrationsAreRefused(t *testing.T) {
	good := `{"agent": "planner", "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}`
	call := func(name string) string {
		return `{"role": "assistant", "content": "<tool_call>{\"name\": \"` + name + `\", \"arguments\": {\"query\": \"x\"}}</tool_call>"}`
	}
	chat := func(messages ...string) string {
		return `{"agent": "searcher", "messages": [{"role": "user", "content": "?"}, ` + strings.Join(messages, ", ") + `]}`
	}
	result, answer := `{"role": "tool", "content": "r"}`, `{"role": "assistant", "content": "a"}`
	for want, line := range map[string]string{
		`chats.jsonl:2: the agent's turn 1: there is no tool "lookup". Tools: search.`:   chat(call("lookup"), result, answer),
		"chats.jsonl:2: the agent's turn 1: 1 result(s) follow it, but it makes no call": chat(answer, result, answer),
		"chats.jsonl:2: the agent's turn 1: it makes 1 call(s), but 2 result(s) follow":  chat(call("search"), result, result, answer),
		"chats.jsonl:2: message 1 is empty":                                              strings.Replace(chat(answer), `"?"`, "null", 1),
		`chats.jsonl:2: there is no agent "seeker": planner, searcher`:                   strings.Replace(chat(answer), "searcher", "seeker", 1),
	} {
		if _, err := demonstrate(t, searcher(t), good, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestParseChat(t *testing.T) {
	message := func(role string) string { return `{"role": "` + role + `", "content": "x"}` }
	for roles, want := range map[string]string{
		"user assistant":                "",
		"user assistant tool assistant": "",
		"user assistant assistant":      "",
		"user":                          "at least",
		"":                              "at least",
		"system user assistant":         `message 1 has the role "system"`,
		"user tool assistant":           `message 2 has the role "tool"`,
		"user assistant user assistant": `message 3 has the role "user"`,
		"assistant":                     `message 1 has the role "assistant"`,
	} {
		var messages []string
		for role := range strings.FieldsSeq(roles) {
			messages = append(messages, message(role))
		}
		d, err := parseChat([]byte(`{"agent": "a", "messages": [`+strings.Join(messages, ", ")+`]}`), false)
		switch {
		case want == "" && (err != nil || len(d.Segments) != len(messages) || !d.Segments[1].Sampled):
			t.Errorf("%q: got %+v, error %v", roles, d, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want an error with %q", roles, err, want)
		}
	}
}

// TestDemonstrationsAreCounted: demonstrations that are too long or beyond the first n are counted. Later bad rows are found.
func TestDemonstrationsAreCounted(t *testing.T) {
	chat := func(agent, answer string) string {
		return `{"agent": "` + agent + `", "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "` + answer + `"}]}`
	}
	long := strings.Repeat("long ", 4096)
	lines := []string{chat("searcher", "a"), chat("planner", "b"), chat("searcher", long), chat("searcher", "c"), chat("searcher", long), chat("planner", "d")}
	path := filepath.Join(t.TempDir(), "chats.jsonl")
	for _, c := range []struct {
		n    int
		more string
		want string
	}{
		{100, "", "2 of 4 demonstrations used; 2 longer than the context of 4096 tokens"},
		{2, "", "1 of 4 demonstrations used; 1 longer than the context of 4096 tokens; 2 beyond cold_start.queries"},
		{4, "", "2 of 4 demonstrations used; 2 longer than the context of 4096 tokens"},
		{1, "{", "chats.jsonl:7: not a JSON object"},
	} {
		if err := os.WriteFile(path, []byte(strings.Join(append(lines, c.more), "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		chats := &Chats{Path: path, Agents: []string{"planner", "searcher"}}
		got, err := searcher(t).Demonstrations(chats, c.n, 4096)
		text := got.String()
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, c.want) {
			t.Errorf("%d: %s, want %s", c.n, text, c.want)
		}
	}
}

// TestToolsAsTexts: the tools of a row may be a list of JSON texts, or one text.
func TestToolsAsTexts(t *testing.T) {
	const definition = `{"type":"function","function":{"name":"add"}}`
	for _, tools := range []string{"[" + definition + "]", fmt.Sprintf("[%q]", definition), fmt.Sprintf("%q", "["+definition+"]")} {
		d, err := parseChat([]byte(`{"tools": `+tools+`, "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}`), true)
		if err != nil || len(d.Program.Functions) != 1 || string(d.Program.Functions[0]) != definition {
			t.Errorf("%s: %+v, %v", tools, d.Program, err)
		}
	}
}

// TestParquetFillsAreNotLearned: the structs of a Parquet column have the fields of all rows. The nulls that fill them are neither
// arguments nor parts of definitions, as after TRL's remove_none_values. An argument that may be null stays.
// testdata/fills.py wrote the file.
func TestParquetFillsAreNotLearned(t *testing.T) {
	chats := &Chats{Path: "testdata/fills.parquet", Agents: []string{"a"}, Program: true}
	var functions, arguments []string
	for d := range chats.Demonstrations(task.AgentRole{Agent: "a"}, 10) {
		for _, f := range d.Program.Functions {
			functions = append(functions, string(f))
		}
		for _, c := range d.Segments[1].Calls {
			arguments = append(arguments, c.Name+string(c.Arguments))
		}
	}
	if chats.Err != nil {
		t.Fatal(chats.Err)
	}
	const start, end = `{"type":"function","function":{"name":"%[1]s","description":"%.1[1]s","parameters":{"type":"object","properties":{`, `},"required":["%s"]}}}`
	weather := fmt.Sprintf(start+`"city":{"type":"string"},"unit":{"anyOf":[{"type":"string"},{"type":"null"}]}`, "weather") + fmt.Sprintf(end, "city")
	calc := fmt.Sprintf(start+`"expression":{"type":"string"}`, "calc") + fmt.Sprintf(end, "expression")
	if want := []string{weather, calc}; !slices.Equal(functions, want) {
		t.Errorf("functions %s, want %s", functions, want)
	}
	if want := []string{`weather{"city": "Oslo", "unit": null}`, `calc{"expression": "2+2"}`}; !slices.Equal(arguments, want) {
		t.Errorf("arguments %s, want %s", arguments, want)
	}
}

// TestProgramsDemonstrations: a chat of a program, in the format of OpenAI's fine-tuning files, has the prompt
// of the program's requests. The system message and the functions come from the chat, not from the agent.
func TestProgramsDemonstrations(t *testing.T) {
	p := searcher(t)
	p.Role.System = "The configuration's."
	line := `{"tools": [{"type": "function", "function": {"name": "add", "description": "Sum.", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}}],
		"parallel_tool_calls": false, "agent": "searcher", "messages": [SYSTEM{"role": "user", "content": "1 + 2?"},
		{"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 3}"}}]},
		{"role": "tool", "tool_call_id": "c1", "content": "3"}, {"role": "assistant", "content": "3"}]}`
	line = strings.ReplaceAll(line, "\n\t\t", "")
	if _, err := demonstrate(t, p, strings.Replace(line, "SYSTEM", "", 1)); err == nil || !strings.Contains(err.Error(), `it lists the tool "add"`) {
		t.Errorf("an agent that holds its own conversations: got error %v", err)
	}
	path := filepath.Join(t.TempDir(), "chats.jsonl")
	for system, want := range map[string]string{"": "The configuration's.", `{"role": "system", "content": "Be brief."}, `: "Be brief."} {
		if err := os.WriteFile(path, []byte(strings.Replace(line, "SYSTEM", system, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		chats := &Chats{Path: path, Agents: []string{"searcher"}, Program: true}
		demonstrated, err := p.Demonstrations(chats, 100, 4096)
		got := demonstrated.Trajectories
		if err != nil || len(got) != 1 {
			t.Fatalf("%d demonstrations, %v", len(got), err)
		}
		asked, err := agent.NewTemplate(agent.TemplateOptions{Tokenizer: p.Tokenizer, Functions: []json.RawMessage{
			json.RawMessage(`{"type":"function","function":{"name":"add","description":"Sum.","parameters":{"type":"object","properties":{"a":{"type":"number"}}}}}`)}})
		if err != nil {
			t.Fatal(err)
		}
		prompt, _, err := asked.Prompt([]tokenizer.Message{{Role: "system", Content: want}, {Role: "user", Content: "1 + 2?"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(got[0].Tokens) <= len(prompt) || !slices.Equal(got[0].Tokens[:len(prompt)], prompt) || slices.Contains(got[0].Sampled[:len(prompt)], true) {
			t.Errorf("%q: the prompt is %q", system, p.Tokenizer.Decode(got[0].Tokens, false))
		}
		if text := p.Tokenizer.Decode(got[0].Tokens[len(prompt):], false); !strings.Contains(text, `"add"`) {
			t.Errorf("the turn is %q", text)
		}
	}
}
