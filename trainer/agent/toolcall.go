package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	callOpen, callClose         = "<tool_call>", "</tool_call>"
	responseOpen, responseClose = "<tool_response>", "</tool_response>"
	thinkOpen, thinkClose       = "<think>", "</think>"
)

// ParsedCall is one <tool_call> block of a turn: a name and a JSON object of arguments, or a Problem.
type ParsedCall struct {
	Name      string
	Arguments json.RawMessage
	Problem   string
}

// ParseToolCalls reads the Hermes format: any number of
//
//	<tool_call>{"name": "…", "arguments": {…}}</tool_call>
//
// with any text between but the tags. Calls have the order in which they were written. A block that cannot be read has a Problem
// that tells the model what to write instead. Arguments may also be a string that contains a JSON object, because some
// templates teach this.
func ParseToolCalls(text string) []ParsedCall {
	var calls []ParsedCall
	for {
		between, block, found := strings.Cut(text, callOpen)
		if strings.Contains(between, callClose) { // a model that may write it drifts into writing nothing else
			calls = append(calls, ParsedCall{Problem: callClose + " without " + callOpen + ". " + callFormatHint})
		}
		if !found {
			return calls
		}
		call, rest := parseBlock(block)
		calls = append(calls, call)
		text = rest
	}
}

// parseBlock reads one call and returns the text after it. It looks for the closing tag after the JSON value, so a
// string in the arguments may contain the tag.
func parseBlock(block string) (ParsedCall, string) {
	dec := json.NewDecoder(strings.NewReader(block))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		_, rest, closed := strings.Cut(block, callClose)
		if !closed {
			// Further blocks may follow an unclosed block.
			if i := strings.Index(block, callOpen); i >= 0 {
				rest = block[i:]
			}
		}
		return ParsedCall{Problem: "the tool call is not valid JSON (" + jsonProblem(err) + "). " + callFormatHint}, rest
	}
	after := strings.TrimLeft(block[dec.InputOffset():], " \t\r\n")
	rest, closed := strings.CutPrefix(after, callClose)
	if !closed {
		if i := strings.Index(after, callClose); i >= 0 && !strings.Contains(after[:i], callOpen) {
			rest = after[i+len(callClose):]
		}
		return ParsedCall{Problem: "the tool call's JSON object is not followed by " + callClose + ". " + callFormatHint}, rest
	}
	return parseCall(raw, "arguments", callFormatHint), rest
}

const callFormatHint = `Write ` + callOpen + `{"name": "...", "arguments": {...}}` + callClose + `.`

// parseCall reads a call's JSON object, whose arguments are under key. hint is what a model should have written.
func parseCall(raw json.RawMessage, key, hint string) ParsedCall {
	var fields map[string]json.RawMessage // a struct would ignore the case of keys
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return ParsedCall{Problem: "the tool call is not a JSON object. " + hint}
	}
	var call ParsedCall
	if err := json.Unmarshal(fields["name"], &call.Name); err != nil || call.Name == "" {
		return ParsedCall{Problem: `the tool call has no "name" string. ` + hint}
	}
	arguments := fields[key]
	var text string
	if json.Unmarshal(arguments, &text) == nil && json.Valid([]byte(text)) {
		arguments = json.RawMessage(text)
	}
	arguments = bytes.TrimSpace(arguments)
	if len(arguments) == 0 || arguments[0] != '{' {
		call.Problem = fmt.Sprintf(`the call of %q has no %q object. %s`, call.Name, key, hint)
		return call
	}
	call.Arguments = arguments
	return call
}

func jsonProblem(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "it ends too early"
	}
	return err.Error()
}
