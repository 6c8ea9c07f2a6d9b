package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/jinja"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// messageSupport records which messages a template can print, other than the texts of users and assistants.
type messageSupport struct {
	toolRole bool // tool messages that answer calls
	calls    bool // an assistant's calls; false: they are part of its text
	asText   bool // the arguments of calls are JSON texts, not objects
	oneCall  bool // a message has one call at most
	shortIDs bool // ids of calls are nine letters and digits
}

// probeCalls finds out how the template prints calls and chooses the format that reads them. If a template prints
// functions but no calls, its prompt may show the notation. Otherwise the system message describes the functions and
// the notation is Hermes's. If the agent has functions, probeCalls returns an error for a template that prints calls in an
// unknown notation, and for one that offers functions but fails to print their calls. A template may refuse calls
// with raise_exception.
func probeCalls(t *Template) error {
	t.calls = callformat.Hermes
	format, err := learnCalls(t)
	switch {
	case err == nil:
		t.calls, t.history.calls = format, true
		probeCallRules(t)
	case len(t.cfg.Functions) == 0:
	case errors.Is(err, callformat.ErrUnknown):
		return fmt.Errorf("%w: use a template with another notation, or remove the tools", err)
	case t.tools != nil && !errors.Is(err, callformat.ErrNotPrinted) && !errors.Is(err, jinja.ErrRaised):
		return fmt.Errorf("the chat template prints functions, but cannot print their calls: use another template, or remove the tools: %w", err)
	case t.tools != nil:
		prompt, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}}, t.tools, true)
		if err != nil {
			return err
		}
		if format := callformat.WriterForPrompt(prompt); format != nil {
			t.calls = format
			return nil
		}
		t.tools = nil
	}
	return nil
}

// learnCalls learns the format with arguments as objects, which is the convention of transformers' templates, or as
// JSON texts.
func learnCalls(t *Template) (format callformat.Format, err error) {
	for _, t.history.asText = range []bool{false, true} {
		var again error
		if format, again = callformat.InferFormat(t.printCalls); again == nil {
			return format, nil
		}
		if err == nil || errors.Is(again, callformat.ErrUnknown) {
			err = again
		}
	}
	t.history.asText = false
	return nil, err
}

// printCalls prints an assistant's message for callformat.InferFormat.
func (t *Template) printCalls(content string, calls ...callformat.ProbeCall) (string, error) {
	m := tokenizer.Message{Role: "assistant", Content: content}
	for _, c := range calls {
		arguments := &ordered.Object{}
		for _, a := range c.Arguments {
			arguments.Set(a.Key, a.Value)
		}
		m.ToolCalls = append(m.ToolCalls, tokenizer.ToolCall{ID: c.ID, Name: c.Name, Arguments: arguments})
	}
	text, err := t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, m}, t.tools, false)
	_, text, _ = strings.Cut(text, probeUser)
	return text, err
}

// probeCallRules finds out whether the template refuses several calls in a message, or long ids.
func probeCallRules(t *Template) {
	one := callformat.ProbeCall{ID: callformat.ProbeID, Name: probeFunction}
	t.opening, _ = t.beforeTurn() // cannot fail: InferFormat has printed the same
	other := callformat.ProbeCall{ID: "probe0002", Name: probeOther}
	text, err := t.printCalls("", one, other)
	t.history.oneCall = err != nil || !strings.Contains(text, probeOther)
	long := "call_" + strings.Repeat(callformat.ProbeID, 3)
	call := tokenizer.ToolCall{ID: long, Name: probeFunction}
	_, err = t.render([]tokenizer.Message{{Role: "user", Content: probeUser}, {Role: "assistant", ToolCalls: []tokenizer.ToolCall{call}},
		{Role: "tool", Name: probeFunction, ToolCallID: long, Content: probeAnswer}}, t.tools, false)
	t.history.shortIDs = err != nil
}

// printable converts messages into messages that the template can print.
func (t *Template) printable(messages []tokenizer.Message) []tokenizer.Message {
	return t.history.withResults(t.history.withCalls(withIDs(messages), t.calls))
}

// withIDs gives an id to each call and each tool message without one. It assumes that results come in the order of the
// calls.
func withIDs(messages []tokenizer.Message) []tokenizer.Message {
	out := slices.Clone(messages)
	var open []tokenizer.ToolCall // calls without a result so far
	for i, m := range out {
		switch {
		case len(m.ToolCalls) > 0:
			out[i].ToolCalls = slices.Clone(m.ToolCalls)
			for j := range out[i].ToolCalls {
				if out[i].ToolCalls[j].ID == "" {
					out[i].ToolCalls[j].ID = callID(i, j)
				}
			}
			open = slices.Clone(out[i].ToolCalls)
		case m.Role == "tool" && len(open) > 0:
			at := max(0, slices.IndexFunc(open, func(c tokenizer.ToolCall) bool { return c.ID == m.ToolCallID }))
			if m.ToolCallID == "" {
				out[i].ToolCallID = open[at].ID
			}
			if m.Name == "" && open[at].ID == out[i].ToolCallID {
				out[i].Name = open[at].Name
			}
			open = slices.Delete(open, at, at+1)
		}
	}
	return out
}

// callID returns the id for a call without one: nine letters and digits.
func callID(message, call int) string { return fmt.Sprintf("call%02d%03d", message%100, call%1000) }

// withCalls writes calls in the form that the template expects, or as text in a format.
func (h messageSupport) withCalls(messages []tokenizer.Message, format callformat.Format) []tokenizer.Message {
	var out []tokenizer.Message
	for i, m := range messages {
		switch {
		case h.shortIDs && m.ToolCallID != "":
			m.ToolCallID = shortID(m.ToolCallID)
		case len(m.ToolCalls) == 0:
		case !h.calls:
			m = asText(m, format)
		default:
			m.ToolCalls = h.adapted(m.ToolCalls)
		}
		if !h.oneCall || len(m.ToolCalls) < 2 {
			out = append(out, m)
			continue
		}
		// Each call becomes a message of its own, followed by its result. Results of later calls are not there yet.
		for j, c := range m.ToolCalls {
			one := tokenizer.Message{Role: "assistant", ToolCalls: []tokenizer.ToolCall{c}}
			if j == 0 {
				one.Content, one.Reasoning = m.Content, m.Reasoning
			}
			out = append(out, one)
			for _, r := range messages[i+1:] {
				if r.Role == "tool" && r.ToolCallID == c.ID {
					out = append(out, r)
				}
			}
		}
		return append(out, h.withCalls(withoutResults(messages[i+1:], m.ToolCalls), format)...)
	}
	return out
}

// withoutResults returns messages without the results of the given calls.
func withoutResults(messages []tokenizer.Message, calls []tokenizer.ToolCall) []tokenizer.Message {
	return slices.DeleteFunc(slices.Clone(messages), func(m tokenizer.Message) bool {
		return m.Role == "tool" && slices.ContainsFunc(calls, func(c tokenizer.ToolCall) bool { return c.ID == m.ToolCallID })
	})
}

// adapted returns calls with ids and arguments in the form that the template expects.
func (h messageSupport) adapted(calls []tokenizer.ToolCall) []tokenizer.ToolCall {
	out := slices.Clone(calls)
	for i, c := range out {
		if h.shortIDs {
			out[i].ID = shortID(c.ID)
		}
		if text, ok := argumentsText(c.Arguments); ok && h.asText {
			out[i].Arguments = text
		}
	}
	return out
}

func argumentsText(arguments any) (string, bool) {
	if arguments == nil {
		return "{}", true
	}
	if text, ok := arguments.(string); ok {
		return text, true
	}
	text, err := ordered.Dumps(arguments, ordered.Format{})
	return text, err == nil
}

// shortID returns an id of nine letters and digits. It returns an id that already has this form unchanged.
func shortID(id string) string {
	if nineLetters.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])[:9]
}

var nineLetters = regexp.MustCompile(`^[a-zA-Z0-9]{9}$`)

// asText returns a message with its calls as part of its text.
func asText(m tokenizer.Message, format callformat.Format) tokenizer.Message {
	calls := make([]callformat.Call, len(m.ToolCalls))
	for i, c := range m.ToolCalls {
		text, ok := argumentsText(c.Arguments)
		if !ok {
			text = "{}"
		}
		calls[i] = callformat.Call{Name: c.Name, Arguments: []byte(text)}
	}
	m.ToolCalls = nil
	m.Content = strings.TrimLeft(m.Content+"\n"+writerOf(format).Write(calls), "\n")
	return m
}

// writerOf returns the writer of a format, or Hermes's if the format has none.
func writerOf(format callformat.Format) callformat.Writer {
	if w, ok := format.(callformat.Writer); ok {
		return w
	}
	return callformat.Hermes
}

// withResults turns tool messages into a user message, for a template without a tool role.
func (h messageSupport) withResults(messages []tokenizer.Message) []tokenizer.Message {
	if h.toolRole || !slices.ContainsFunc(messages, func(m tokenizer.Message) bool { return m.Role == "tool" }) {
		return messages
	}
	var out []tokenizer.Message
	var blocks []string
	flush := func() {
		if len(blocks) > 0 {
			out = append(out, tokenizer.Message{Role: "user", Content: strings.Join(blocks, "\n")})
		}
		blocks = nil
	}
	for _, m := range messages {
		if m.Role == "tool" {
			blocks = append(blocks, responseOpen+"\n"+m.Content+"\n"+responseClose)
			continue
		}
		flush()
		out = append(out, m)
	}
	flush()
	return out
}
