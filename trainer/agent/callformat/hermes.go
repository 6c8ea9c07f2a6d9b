package callformat

import (
	"encoding/json"
	"strings"
)

// Marks of the Hermes format.
const (
	HermesOpen, HermesClose = "<tool_call>", "</tool_call>"
)

// Hermes is any number of
//
//	<tool_call>{"name": ..., "arguments": {...}}</tool_call>
//
// with any text between them except the tags. A block that cannot be read has a Problem. A text in the arguments may
// contain the tags.
var Hermes Writer = hermes{}

type hermes struct{}

const hermesHint = `Write ` + HermesOpen + `{"name": "...", "arguments": {...}}` + HermesClose + `.`

func (hermes) Hint() string { return hermesHint }

func (hermes) Mark() string { return HermesOpen }

func (hermes) SafeLen(text string) int { return SafeLen(text, HermesOpen) }

func (hermes) Read(text string, _ Functions) Reading {
	r := noCalls(text)
	for at := 0; ; {
		open := IndexUnquoted(text, at, HermesOpen)
		// If this were accepted, a model would drift into writing only closing tags.
		if i := lastUnquoted(text[:open], at, HermesClose); i >= 0 {
			r.Calls = append(r.Calls, Call{Problem: HermesClose + " without " + HermesOpen + ". " + hermesHint})
			r.End = i + len(HermesClose)
		}
		if open == len(text) {
			return r
		}
		r.Start = min(r.Start, open)
		calls, rest := hermesBlock(text[open+len(HermesOpen):])
		r.Calls = append(r.Calls, calls...)
		at = len(text) - len(rest)
		r.End = at
	}
}

// hermesBlock reads one call, or a list of calls, and returns the text after it. It looks for the closing tag after the JSON value.
// Granite 3.1 writes a list without a closing tag.
func hermesBlock(block string) ([]Call, string) {
	raw, n, err := decode(block)
	if err != nil {
		_, rest, closed := strings.Cut(block, HermesClose)
		if !closed {
			// Further blocks may follow an unclosed block.
			if i := strings.Index(block, HermesOpen); i >= 0 {
				rest = block[i:]
			}
		}
		return []Call{invalid(err, hermesHint)}, rest
	}
	after := block[skipSpace(block, n):]
	rest, closed := strings.CutPrefix(after, HermesClose)
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		calls := make([]Call, len(list))
		for i, one := range list {
			calls[i] = callOf(one, "name", "arguments", hermesHint)
		}
		return calls, rest
	}
	if !closed {
		if i := strings.Index(after, HermesClose); i >= 0 && !strings.Contains(after[:i], HermesOpen) {
			rest = after[i+len(HermesClose):]
		}
		return []Call{{Problem: "the tool call's JSON object is not followed by " + HermesClose + ". " + hermesHint}}, rest
	}
	return []Call{callOf(raw, "name", "arguments", hermesHint)}, rest
}

// learnHermes recognises the format by its opening tag and an object that begins with the key "name".
func learnHermes(p *probes) Format {
	if i := strings.Index(p.one, probeName); strings.HasSuffix(strings.TrimSpace(p.one[:i]), `"name": "`) && strings.Contains(p.one[:i], HermesOpen) {
		return Hermes
	}
	return nil
}
