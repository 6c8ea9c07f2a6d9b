package callformat

import (
	"encoding/json"
	"strings"
)

// Writer is a Format that can also write calls, for templates that do not print them.
type Writer interface {
	Format
	// Write returns calls in the model's notation. Arguments are JSON objects.
	Write(calls []Call) string
}

// promptFormats lists the notations of models whose templates print functions but no calls. A mark in the prompt identifies each
// notation.
var promptFormats = []struct {
	mark   string // occurs in a prompt that offers functions
	format Writer
}{
	{"<|tool_list_start|>", python{open: "<|tool_call_start|>", close: "<|tool_call_end|>"}},                               // LFM2
	{"List of tools: [", python{open: "<|tool_call_start|>", close: "<|tool_call_end|>"}},                                  // LFM2.5
	{"<|tool|>", tagged{open: "<|tool_call|>", close: "<|/tool_call|>", name: "name", arguments: "arguments", list: true}}, // Phi-4-mini
	// Phi-4-mini and Firefunction.
	{"functools[", tagged{open: "functools", name: "name", arguments: "arguments", list: true}},
	{"<|tool_call|>", tagged{open: "<|tool_call|>", name: "name", arguments: "arguments", list: true}}, // Granite 3
	// Jamba and others.
	{"<tool_calls>", tagged{open: "<tool_calls>", close: "</tool_calls>", name: "name", arguments: "arguments", list: true}},
	{HermesOpen, hermes{}},
}

// WriterForPrompt returns the notation that a prompt with functions asks for, or nil if it is unknown. It serves templates that do
// not print calls.
func WriterForPrompt(prompt string) Writer {
	for _, t := range promptFormats {
		if strings.Contains(prompt, t.mark) {
			return t.format
		}
	}
	return nil
}

// Write implements Writer.
func (hermes) Write(calls []Call) string {
	texts := make([]string, len(calls))
	for i, c := range calls {
		texts[i] = HermesOpen + "\n" + `{"name": ` + string(quoted(c.Name)) + `, "arguments": ` + string(c.Arguments) + "}\n" + HermesClose
	}
	return strings.Join(texts, "\n")
}

// Write implements Writer.
func (t tagged) Write(calls []Call) string {
	texts := make([]string, len(calls))
	for i, c := range calls {
		texts[i] = `{"` + t.name + `": ` + string(quoted(c.Name)) + `, "` + t.arguments + `": ` + string(c.Arguments) + "}"
	}
	return t.open + "[" + strings.Join(texts, ", ") + "]" + t.close
}

// Write implements Writer. Values are Python literals.
func (p python) Write(calls []Call) string {
	texts := make([]string, len(calls))
	for i, c := range calls {
		texts[i] = c.Name + "(" + pythonArguments(c.Arguments) + ")"
	}
	if p.lines {
		return p.open + "\n" + strings.Join(texts, "\n") + "\n" + p.close
	}
	return p.open + "[" + strings.Join(texts, ", ") + "]" + p.close
}

// pythonArguments writes the fields of a JSON object as KEY=VALUE in their order.
func pythonArguments(raw json.RawMessage) string {
	var parts []string
	eachField(raw, func(key string, v json.RawMessage) { parts = append(parts, key+"="+pythonValue(v)) })
	return strings.Join(parts, ", ")
}

// eachField calls f for each field of a JSON object in their order.
func eachField(raw json.RawMessage, f func(key string, v json.RawMessage)) {
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return
	}
	for dec.More() {
		key, err := dec.Token()
		var v json.RawMessage
		if err != nil || dec.Decode(&v) != nil {
			return
		}
		f(key.(string), v)
	}
}

// pythonValue writes a JSON value as a Python literal. A JSON string is a Python literal, too.
func pythonValue(v json.RawMessage) string {
	switch typeOf(v) {
	case "boolean":
		return map[byte]string{'t': "True", 'f': "False"}[v[0]]
	case "null":
		return "None"
	case "array":
		var list []json.RawMessage
		if json.Unmarshal(v, &list) != nil {
			return string(v)
		}
		items := make([]string, len(list))
		for i, e := range list {
			items[i] = pythonValue(e)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case "object":
		var parts []string
		eachField(v, func(key string, v json.RawMessage) { parts = append(parts, string(quoted(key))+": "+pythonValue(v)) })
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return string(v)
}
