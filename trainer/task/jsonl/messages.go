package jsonl

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// roles are the names of roles: OpenAI's, and ShareGPT's.
var roles = map[string]string{
	"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant",
	"tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "system": "system", "developer": "system",
	"function_call": "assistant", // whose text is a call
}

// Role returns OpenAI's name of a role, which may be named as in ShareGPT's files; an unknown name is returned as it is.
func Role(name string) string { return cmp.Or(roles[name], name) }

// Content returns the text of a message's content: a text, null, or a list of parts, which must be texts.
func Content(raw json.RawMessage) (text string, err error) {
	switch {
	case len(raw) == 0, string(raw) == "null":
		return "", nil
	case raw[0] != '[':
		return text, json.Unmarshal(raw, &text)
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", err
	}
	for i, p := range parts {
		if p.Type != "text" || p.Text == nil {
			return "", fmt.Errorf("part %d is of the type %q: only texts are read", i+1, p.Type)
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

// hasValue reports whether a key has a value. Tables fill in null, and empty texts and lists, where rows differ.
func hasValue(raw json.RawMessage) bool {
	return len(raw) > 0 && !slices.Contains([]string{"null", "[]", "{}", `""`}, string(raw))
}

// errNotRead is the error for a key whose value would change the question.
func errNotRead(key string) error {
	return fmt.Errorf("%q is not read: take it out, or the question is not what the file says", key)
}

// refuseMedia returns an error if a row has pictures, films or sound, which agents cannot see.
func refuseMedia(row object) error {
	for _, key := range []string{"images", "image", "videos", "video", "audios", "audio"} {
		if hasValue(row[key]) {
			return errNotRead(key)
		}
	}
	return nil
}

// parseMessages reads a list of messages. There is at least one.
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
	var said string
	if !hasValue(o[role]) {
		return m, fmt.Errorf("it has no %q", role)
	}
	if err := json.Unmarshal(o[role], &said); err != nil {
		return m, wrapped(role, err)
	}
	m.role = Role(said)
	m.call = said == "function_call" || m.role == "assistant" && (hasValue(o["tool_calls"]) || hasValue(o["function_call"]))
	if m.role == "system" || m.role == "user" { // other turns may have what this task has no use for, such as thinking
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

// startOf returns the question at the start of a conversation and the number of its messages: one of the user, after a system message or
// none. The system message's text comes first, then an empty line: the agent's own system prompt is the configuration's.
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
	return fmt.Errorf("message %d has the role %q; a question is one message of the user, after a system message or none", i+1, m.role)
}

// questionOf reads a question: a text, or the messages of a prompt.
func questionOf(raw json.RawMessage) (question string, err error) {
	switch raw[0] {
	case '{':
		return "", errors.New("must be a text, a number or a list of messages")
	case '[':
		messages, err := parseMessages(raw)
		if err != nil {
			return "", err
		}
		question, n, err := startOf(messages)
		if err == nil && n < len(messages) {
			err = fmt.Errorf("%w: write the others into it, or read whole conversations with task.layout: sharegpt", errRole(n, messages[n]))
		}
		return question, err
	}
	err = scalar(raw, &question)
	return question, err
}

// conversationOf reads a conversation about one question. The answer is the last turn; those between, such as calls of tools, are not used.
func conversationOf(messages []message) (question, answer string, err error) {
	question, n, err := startOf(messages)
	if err != nil {
		return "", "", err
	}
	for i, m := range messages[n:] {
		switch m.role {
		case "assistant", "tool":
		case "user":
			return "", "", fmt.Errorf("message %d is a second question: a row has one; make a row of each", n+i+1)
		default:
			return "", "", fmt.Errorf("message %d has the role %q; after the question come turns of the assistant and of tools", n+i+1, m.role)
		}
	}
	last := len(messages) - 1
	switch m := messages[last]; {
	case m.role != "assistant":
		return "", "", fmt.Errorf("no answer: the last message has the role %q, and the answer is the assistant's last turn", m.role)
	case m.call:
		return "", "", fmt.Errorf("message %d is a call: the last turn must be the answer", last+1)
	case m.text == "":
		return "", "", errEmpty(last)
	default:
		return question, m.text, nil
	}
}
