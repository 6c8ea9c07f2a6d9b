package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
)

func TestHermesCalls(t *testing.T) {
	type want struct{ name, arguments, problem string }
	for text, wants := range map[string][]want{
		"":               nil,
		"just an answer": nil,
		`<tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call>`:                                          {{"a", `{"x": 1}`, ""}},
		"I look.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n</tool_call> then":                        {{"a", `{}`, ""}},
		`<tool_call>{"arguments": {"x": [1, {"y": 2}]}, "name": "a", "id": 7}</tool_call>`:                     {{"a", `{"x": [1, {"y": 2}]}`, ""}},
		`<tool_call>{"name": "a", "arguments": "{\"x\": 1}"}</tool_call>`:                                      {{"a", `{"x": 1}`, ""}},
		`<tool_call>{"name": "a", "arguments": {"x": "</tool_call>"}}</tool_call>`:                             {{"a", `{"x": "</tool_call>"}`, ""}},
		`<tool_call>{"name":"a","arguments":{}}</tool_call><tool_call>{"name":"b","arguments":{}}</tool_call>`: {{"a", `{}`, ""}, {"b", `{}`, ""}},
		`<tool_call>{bad}</tool_call><tool_call>{"name":"b","arguments":{}}</tool_call>`:                       {{"", "", "not valid JSON"}, {"b", `{}`, ""}},
		`<tool_call>{"name": "a", "arguments": {}}`:                                                            {{"", "", "not followed by </tool_call>"}},
		`<tool_call>{"name": "a", "arguments": {}} <tool_call>{"name":"b","arguments":{}}</tool_call>`:         {{"", "", "not followed by"}, {"b", `{}`, ""}},
		`<tool_call>{"name": "a", "arguments": {}} more </tool_call>x`:                                         {{"", "", "not followed by"}},
		`<tool_call>{"name": "a"`:                                                                 {{"", "", "ends too early"}},
		`<tool_call>`:                                                                             {{"", "", "ends too early"}},
		`<tool_call>[1]</tool_call>`:                                                              {{"", "", "not a JSON object"}},
		`<tool_call>null</tool_call>`:                                                             {{"", "", "not a JSON object"}},
		`<tool_call>{"Name": "a", "arguments": {}}</tool_call>`:                                   {{"", "", `no "name"`}},
		`<tool_call>{"name": 5, "arguments": {}}</tool_call>`:                                     {{"", "", `no "name"`}},
		`<tool_call>{"name": "a"}</tool_call>`:                                                    {{"a", "{}", ""}},
		`<tool_call>{"name": "a", "arguments": null}</tool_call>`:                                 {{"a", "{}", ""}},
		`<tool_call>{"name": "a", "parameters": {"x": 1}}</tool_call>`:                            {{"a", "", `no "arguments" object`}},
		`<tool_call>{"name": "a", "arguments": "plain text"}</tool_call>`:                         {{"a", "", `no "arguments" object`}},
		`{"name": "a", "arguments": {}}</tool_call>`:                                              {{"", "", "without <tool_call>"}},
		"<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n</tool_call>\n</tool_call>": {{"a", "{}", ""}, {"", "", "without <tool_call>"}},
	} {
		calls := callformat.Hermes.Read(text, nil).Calls
		if len(calls) != len(wants) {
			t.Errorf("%q: got %d calls %+v, want %d", text, len(calls), calls, len(wants))
			continue
		}
		for i, w := range wants {
			c := calls[i]
			if c.Name != w.name || string(c.Arguments) != w.arguments || (c.Problem == "") != (w.problem == "") || !strings.Contains(c.Problem, w.problem) {
				t.Errorf("%q, call %d: got %+v, want %+v", text, i, c, w)
			}
		}
	}
}

// FuzzHermesCalls: every call that is read either has a problem, or has a name and a JSON object as arguments. A call with any text as an
// argument is read as that call.
func FuzzHermesCalls(f *testing.F) {
	for _, seed := range []string{
		"", "<tool_call>", `<tool_call>{"name":"a","arguments":{}}</tool_call>`, "<tool_call><tool_call>{</tool_call>",
		`<tool_call>{"name":"a","arguments":"{}"}</tool_call></tool_call>`, "<tool_call>\"\\ud800\"</tool_call>",
		"<tool_call>" + strings.Repeat("[", 20000), "<think></tool_call></think>",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		calls := callformat.Hermes.Read(text, nil).Calls
		if limit := strings.Count(text, callformat.HermesOpen) + 1; len(calls) > limit {
			t.Fatalf("got %d calls from %d opening tags", len(calls), limit-1)
		}
		for _, c := range calls {
			if c.Problem != "" {
				continue
			}
			var object map[string]json.RawMessage
			if c.Name == "" || json.Unmarshal(c.Arguments, &object) != nil || object == nil {
				t.Fatalf("a call without a problem is not executable: %+v", c)
			}
		}
		arguments, err := json.Marshal(map[string]string{"task": text})
		if err != nil {
			t.Fatal(err)
		}
		again := callformat.Hermes.Read(callformat.HermesOpen+`{"name": "n", "arguments": `+string(arguments)+"}"+callformat.HermesClose, nil).Calls
		if len(again) != 1 || again[0].Problem != "" || string(again[0].Arguments) != string(arguments) {
			t.Fatalf("a call with the text %q as its task reads as %+v", text, again)
		}
	})
}

// TestDelegationText: a written call has no added spaces, because examples/task-in-go has whole words for the texts of a call.
func TestDelegationText(t *testing.T) {
	got := DelegationText("clerk", " cask ")
	if want := "<tool_call>\n{\"name\":\"clerk\",\"arguments\":{\"task\":\" cask \"}}\n</tool_call>"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
