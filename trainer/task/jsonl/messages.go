package jsonl

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// roles maps the names of roles in OpenAI's and ShareGPT's files to OpenAI's names.
var roles = map[string]string{
	"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant",
	"tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "system": "system", "developer": "system",
	"function_call": "assistant", "tool_call": "assistant", // their text is a call
	"tool_response": "tool",
}

// Role returns OpenAI's name of a role, which may have a name from ShareGPT's files. It returns an unknown name as it
// is.
func Role(name string) string { return cmp.Or(roles[name], name) }

// WritesCall reports whether the text of a message of this role is a call.
func WritesCall(role string) bool { return role == "function_call" || role == "tool_call" }

// List returns a JSON list as it is, or the list that a JSON text contains: tables store lists of objects as text.
func List(raw json.RawMessage) json.RawMessage {
	var text string
	if json.Unmarshal(raw, &text) == nil && strings.HasPrefix(strings.TrimSpace(text), "[") && json.Valid([]byte(text)) {
		return json.RawMessage(strings.TrimSpace(text))
	}
	return raw
}

// Content returns the text of a message's content: a text, null, or a list of parts, which must be texts.
func Content(raw json.RawMessage) (text string, err error) {
	switch {
	case len(raw) == 0, string(raw) == "null":
		return "", nil
	case raw[0] == '"':
		return text, json.Unmarshal(raw, &text)
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", errors.New(`must be a text or a list of {"type": "text", "text": ...}`)
	}
	for i, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return "", fmt.Errorf("part %d has the type %q: only texts are supported", i+1, p.Type)
		}
		text += *p.Text
	}
	return text, nil
}

// message is a message of a row: {"role", "content"} in OpenAI's form or {"from", "value"} in ShareGPT's.
type message struct {
	role, text string
	call       bool // the assistant calls a tool
}

// hasValue reports whether a key has a value. If rows have different keys, tables fill the gaps with null or with empty
// texts and lists.
func hasValue(raw json.RawMessage) bool {
	return len(raw) > 0 && !slices.Contains([]string{"null", "[]", "{}", `""`}, string(raw))
}

// errNotRead returns the error for an unsupported key whose value would change the question.
func errNotRead(key string) error {
	return fmt.Errorf("%q is not supported: remove it, because the question would silently lack it", key)
}

// refuseMedia returns an error if a row contains images, videos or sound, which agents cannot read.
func refuseMedia(row object) error {
	for _, key := range []string{"images", "image", "videos", "video", "audios", "audio"} {
		if hasValue(row[key]) {
			return errNotRead(key)
		}
	}
	return nil
}

// parseMessages reads a list of messages. An empty list is an error.
func parseMessages(raw json.RawMessage) ([]message, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, errors.New("must be a list of messages")
	}
	if len(elements) == 0 {
		return nil, errors.New("no messages")
	}
	messages := make([]message, len(elements))
	for i, element := range elements {
		var err error
		if messages[i], err = parseMessage(element); err != nil {
			return nil, fmt.Errorf("message %d: %w", i+1, err)
		}
	}
	return messages, nil
}

func parseMessage(raw json.RawMessage) (m message, err error) {
	var o object
	if err := json.Unmarshal(raw, &o); err != nil || o == nil {
		return m, errors.New("not a JSON object")
	}
	role, text := "role", "content"
	if !hasValue(o[role]) && hasValue(o["from"]) {
		role, text = "from", "value"
	}
	var value string
	if !hasValue(o[role]) {
		return m, fmt.Errorf("it has no %q", role)
	}
	if err := json.Unmarshal(o[role], &value); err != nil {
		return m, withField(role, err)
	}
	m.role = Role(value)
	m.call = WritesCall(value) || m.role == "assistant" && (hasValue(o["tool_calls"]) || hasValue(o["function_call"]))
	if m.role == "system" || m.role == "user" { // other turns may have keys that this task ignores, such as thinking
		for _, key := range slices.Sorted(maps.Keys(o)) {
			if key != role && key != text && key != "weight" && hasValue(o[key]) {
				return m, errNotRead(key)
			}
		}
	}
	if _, given := o[text]; !given && !m.call {
		return m, fmt.Errorf("it has no %q", text)
	}
	if m.text, err = Content(o[text]); err != nil {
		return m, fmt.Errorf("%q: %w", text, err)
	}
	return m, nil
}

// startOf returns the question at the start of a conversation and the number of its messages: one user message,
// optionally after a system message. The system message's text comes first, then an empty line, then the question. It
// does not replace the agent's own system prompt, which comes from the configuration.
func startOf(messages []message) (question string, n int, err error) {
	if first := messages[0]; first.role == "system" {
		if n = 1; first.text != "" {
			question = first.text + "\n\n"
		}
	}
	switch {
	case n == len(messages):
		return "", 0, errors.New("no message of the user")
	case messages[n].role != "user":
		return "", 0, errRole(n, messages[n])
	case messages[n].text == "":
		return "", 0, errEmpty(n)
	}
	return question + messages[n].text, n + 1, nil
}

func errEmpty(i int) error { return fmt.Errorf("message %d is empty", i+1) }

func errRole(i int, m message) error {
	return fmt.Errorf("message %d has the role %q; a question is one user message, optionally after a system message", i+1, m.role)
}

// questionOf reads a question, which is a text or the messages of a prompt.
func questionOf(raw json.RawMessage) (question string, err error) {
	switch raw[0] {
	case '{':
		return "", errors.New("must be a text, a number or a list of messages")
	case '"':
		if list := List(raw); isMessages(list) {
			return questionOf(list)
		}
	case '[':
		messages, err := parseMessages(raw)
		if err != nil {
			return "", err
		}
		question, n, err := startOf(messages)
		if err == nil && n < len(messages) {
			err = fmt.Errorf("%w: put the others into it, or read whole conversations with task.layout: sharegpt", errRole(n, messages[n]))
		}
		return question, err
	}
	err = scalar(raw, &question)
	return question, err
}

// isMessages reports whether a value is a list of objects with roles and contents.
func isMessages(raw json.RawMessage) bool {
	var list []object
	return json.Unmarshal(raw, &list) == nil && len(list) > 0 && !slices.ContainsFunc(list, func(m object) bool {
		return (m["role"] == nil || m["content"] == nil) && (m["from"] == nil || m["value"] == nil)
	})
}

// conversationOf reads a conversation about one question. The answer is the last turn. The turns between, such as calls
// of tools, are ignored.
func conversationOf(messages []message) (question, answer string, err error) {
	question, n, err := startOf(messages)
	if err != nil {
		return "", "", err
	}
	for i, m := range messages[n:] {
		switch m.role {
		case "assistant", "tool":
		case "user":
			return "", "", fmt.Errorf("message %d is a second question, but a row has one question: write one row for each", n+i+1)
		default:
			return "", "", fmt.Errorf("message %d has the role %q; only turns of the assistant and of tools may follow the question", n+i+1, m.role)
		}
	}
	last := len(messages) - 1
	switch m := messages[last]; {
	case m.role != "assistant":
		return "", "", fmt.Errorf("no answer: the last message has the role %q, but the answer must be the assistant's last turn", m.role)
	case m.call:
		return "", "", fmt.Errorf("message %d is a call: the last turn must be the answer", last+1)
	case m.text == "":
		return "", "", errEmpty(last)
	default:
		return question, m.text, nil
	}
}

// shareGPT reads ShareGPT's rows. The first turn of conversations, or of messages in OpenAI's form, is the question,
// and the last is the answer.
func shareGPT(row object) (object, error) {
	name := "conversations"
	if !hasValue(row[name]) && row["messages"] != nil {
		name = "messages"
	}
	raw, err := valueOf(row, name)
	if err != nil {
		return nil, errNotOfLayout(name, err)
	}
	if err := refuseMedia(row); err != nil {
		return nil, err
	}
	messages, err := parseMessages(List(raw))
	if err != nil {
		return nil, withField(name, err)
	}
	if system := row["system"]; hasValue(system) {
		var first message
		if first.role = "system"; messages[0].role == first.role {
			return nil, fmt.Errorf("two system messages: the field %q, and the first of %s; keep one", "system", name)
		}
		if err := scalar(system, &first.text); err != nil {
			return nil, withField("system", err)
		}
		messages = slices.Insert(messages, 0, first)
	}
	question, answer, err := conversationOf(messages)
	if err != nil {
		return nil, withField(name, err)
	}
	out := object{"question": quoted(question), "answer": quoted(answer)}
	if id := row["id"]; id != nil {
		out["id"] = id
	}
	return out, nil
}
