package jsonl

import (
	"fmt"
	"slices"
)

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
	messages, err := parseMessages(raw)
	if err != nil {
		return nil, wrapped(name, err)
	}
	if system := row["system"]; hasValue(system) {
		var first message
		if first.role = "system"; messages[0].role == first.role {
			return nil, fmt.Errorf("two system messages: the field %q, and the first of %s; keep one", "system", name)
		}
		if err := scalar(system, &first.text); err != nil {
			return nil, wrapped("system", err)
		}
		messages = slices.Insert(messages, 0, first)
	}
	question, answer, err := conversationOf(messages)
	if err != nil {
		return nil, wrapped(name, err)
	}
	out := object{"question": quoted(question), "answer": quoted(answer)}
	if id := row["id"]; id != nil {
		out["id"] = id
	}
	return out, nil
}
