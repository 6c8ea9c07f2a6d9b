package agent

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/tokenizer/ordered"
)

// callFormat is how a family of models writes calls of functions.
type callFormat struct {
	mark  string // with which the first call of a turn begins
	parse func(text string) []ParsedCall
}

// The formats. A template shows which of them its model was trained on by how it prints an assistant's calls.
var (
	// hermes is <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen, Hermes, SmolLM and others.
	hermes = callFormat{callOpen, ParseToolCalls}
	// mistral is [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]NAME[ARGS]{...} for each call.
	mistral = callFormat{mistralMark, parseMistral}
	// llama is a turn that is nothing but {"name": ..., "parameters": {...}}, with or without <|python_tag|> before it.
	llama = callFormat{"{", parseLlama}
	// plain is a turn that is nothing but {"name": ..., "arguments": {...}}.
	plain = callFormat{"{", parsePlain}
)

const (
	mistralMark = "[TOOL_CALLS]"
	mistralArgs = "[ARGS]"
	pythonTag   = "<|python_tag|>"
)

// Texts of the call that probes a template.
const (
	probeFunction = "mgrpo_probe_function"
	probeArgument = "mgrpo-probe-argument"
)

// probeCalls finds out how the template prints calls. One that does not print them, or in no known way, is taken to be of
// the Hermes format, which the description of functions in the system message teaches, too.
func (t *Template) probeCalls() {
	t.calls = hermes
	arguments := ordered.NewObject("key", probeArgument)
	text, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, {Role: "assistant",
		ToolCalls: []tokenizer.ToolCall{{ID: "probe0001", Name: probeFunction, Arguments: arguments}}}}, t.tools, false)
	_, text, found := strings.Cut(text, probeUser)
	if err != nil || !found || !strings.Contains(text, probeFunction) || !strings.Contains(text, probeArgument) {
		return
	}
	before, after, _ := strings.Cut(text, probeFunction)
	after, _, _ = strings.Cut(after, probeArgument)
	switch {
	case strings.Contains(before, callOpen):
	case strings.Contains(before, mistralMark):
		t.calls = mistral
	case !strings.HasSuffix(strings.TrimRight(before, ` "`), `"name":`):
	case strings.Contains(after, `"parameters"`):
		t.calls = llama
	case strings.Contains(after, `"arguments"`):
		t.calls = plain
	}
}

// parseMistral reads the calls after [TOOL_CALLS].
func parseMistral(text string) (calls []ParsedCall) {
	_, text, found := strings.Cut(text, mistralMark)
	if !found {
		return nil
	}
	const hint = `Write [TOOL_CALLS][{"name": "...", "arguments": {...}}].`
	if text = strings.TrimSpace(text); !strings.HasPrefix(text, "[") {
		for _, one := range strings.Split(text, mistralMark) {
			name, arguments, _ := strings.Cut(one, mistralArgs)
			object, err := json.Marshal(map[string]any{"name": strings.TrimSpace(name), "arguments": strings.TrimSpace(arguments)})
			if err != nil {
				return append(calls, ParsedCall{Problem: jsonProblem(err)})
			}
			calls = append(calls, parseCall(object, "arguments", hint))
		}
		return calls
	}
	var list []json.RawMessage
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&list); err != nil {
		return []ParsedCall{{Problem: "the tool calls are not a JSON list (" + jsonProblem(err) + "). " + hint}}
	}
	for _, one := range list {
		calls = append(calls, parseCall(one, "arguments", hint))
	}
	return calls
}

func parseLlama(text string) []ParsedCall {
	return parseObjects(strings.TrimPrefix(strings.TrimSpace(text), pythonTag), "parameters", `Write {"name": "...", "parameters": {...}} and nothing else.`)
}

func parsePlain(text string) []ParsedCall {
	return parseObjects(text, "arguments", `Write {"name": "...", "arguments": {...}} and nothing else.`)
}

// parseObjects reads a turn that is one call, or several with semicolons or spaces between them. A turn that is an object
// without a name is an answer.
func parseObjects(text, key, hint string) (calls []ParsedCall) {
	for text = strings.TrimSpace(text); strings.HasPrefix(text, "{"); text = strings.TrimLeft(text, "; \t\r\n") {
		dec := json.NewDecoder(strings.NewReader(text))
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return append(calls, ParsedCall{Problem: "the tool call is not valid JSON (" + jsonProblem(err) + "). " + hint})
		}
		if len(calls) == 0 && !bytes.Contains(raw, []byte(`"name"`)) {
			return nil
		}
		calls = append(calls, parseCall(raw, key, hint))
		text = text[dec.InputOffset():]
	}
	return calls
}
