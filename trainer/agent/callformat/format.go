// Package callformat reads the function calls that a model writes in its turns. Each family of models has its own
// notation, and the family's chat template prints it. InferFormat asks a template to print a few calls and returns the
// Format that reads them.
//
// One file holds one notation:
//
//	hermes.go   <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen 2.5 and 3, Hermes, SmolLM, Granite 4
//	tagged.go   the same JSON, or a list of it, between other marks and with other keys: Command-R, Granite 3, Phi-4, Jamba,
//	            Nemotron Nano, Apertus, Apriel, MiniMax-M1
//	bare.go     JSON without any mark, or a list of Python calls: Llama 3 and 4
//	mistral.go  [TOOL_CALLS] with a list, or with a name and [ARGS]: all versions of Mistral, Devstral, Ministral
//	named.go    a name, then its arguments as JSON: DeepSeek, Kimi K2, Hunyuan, Solar, Functionary
//	pairs.go    a name, then keys and values between marks: Qwen3-Coder, Qwen3.5, Nemotron 3, GLM, MiniMax-M2, DeepSeek V3.2,
//	            Seed-OSS, MiniCPM
//	python.go   a list of Python calls between marks: LFM2
//	gemma.go    call:NAME{key:<|"|>text<|"|>}: Gemma 4
//	harmony.go  messages in channels: GPT-OSS
//
// tagged.go, named.go and pairs.go look for the marks that the template printed. A reader never panics and looks at
// each byte a bounded number of times. If it cannot read a call, it returns a Call whose Problem explains to the model
// what to write instead.
//
// Streams: SafeLen is stable under continuation. For a text s and any continuation s+c, the Start that Read finds in s+c
// is at least SafeLen(s). A client may therefore receive s[:SafeLen(s)] while the model still samples.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package callformat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
)

// Call is one call as a model wrote it: a name and a JSON object of arguments, or a Problem that explains to the model
// what to write instead.
type Call struct {
	Name      string
	Arguments json.RawMessage
	Problem   string
}

// Reading is the result of reading a turn.
type Reading struct {
	Calls []Call // in the order written
	Start int    // index of the first call, including its mark; the length of the text if there are no calls
	End   int    // index after the last call and its closing mark
}

// Format is a notation of calls.
type Format interface {
	// Mark returns the text that begins the first call of a turn, or "" if the notation has no mark.
	Mark() string
	// Read returns the calls of a turn; the text must not contain the turn's thinking. The functions decide the types
	// of values if the notation does not write them, and whether an object without a mark is a call.
	Read(text string, functions Functions) Reading
	// SafeLen returns the length of the part of an unfinished text that comes before any call, however the text continues.
	SafeLen(text string) int
	// Hint returns an instruction that shows the model how to write a call.
	Hint() string
}

// noCalls returns the Reading of a text without calls.
func noCalls(text string) Reading { return Reading{Start: len(text), End: len(text)} }

// IndexUnquoted returns the index in text of the first mark from an index on that is not quoted, or the length of text.
func IndexUnquoted(text string, from int, mark string) int {
	for at := from; ; {
		i := strings.Index(text[at:], mark)
		if i < 0 {
			return len(text)
		}
		i += at
		if at = i + len(mark); !quotedAt(text, i, at) {
			return i
		}
	}
}

// lastUnquoted returns the index in text of the last mark from an index on that is not quoted, or -1.
func lastUnquoted(text string, from int, mark string) int {
	last := -1
	for i := IndexUnquoted(text, from, mark); i < len(text); i = IndexUnquoted(text, i+len(mark), mark) {
		last = i
	}
	return last
}

// quotedAt reports whether text[i:j] stands between two equal quotation marks: such a mark is mentioned, and does not begin a call.
func quotedAt(text string, i, j int) bool {
	return i > 0 && j < len(text) && text[i-1] == text[j] && strings.IndexByte("`'\"", text[j]) >= 0
}

// SafeLen returns the length of text before the first of the marks, without a tail that may be the beginning of a mark.
func SafeLen(text string, marks ...string) int {
	end := len(text)
	for _, m := range marks {
		if m == "" {
			continue
		}
		if i := strings.Index(text[:end], m); i >= 0 {
			end = i
			continue
		}
		for n := min(len(m)-1, end); n > 0; n-- {
			if strings.HasSuffix(text[:end], m[:n]) {
				end -= n
				break
			}
		}
	}
	return end
}

// decode reads the JSON value at the beginning of text and returns its length.
func decode(text string) (json.RawMessage, int, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return nil, 0, err
	}
	return raw, int(dec.InputOffset()), nil
}

// invalid returns the Call for JSON that cannot be read.
func invalid(err error, hint string) Call {
	why := err.Error()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		why = "it ends too early"
	}
	return Call{Problem: "the tool call is not valid JSON (" + why + "). " + hint}
}

// callOf reads a call's JSON object; key is the key of its arguments.
func callOf(raw json.RawMessage, name, key, hint string) Call {
	fields := object(raw)
	if fields == nil {
		return Call{Problem: "the tool call is not a JSON object. " + hint}
	}
	var call Call
	if err := json.Unmarshal(fields[name], &call.Name); err != nil || call.Name == "" {
		return Call{Problem: fmt.Sprintf(`the tool call has no %q string. %s`, name, hint)}
	}
	others := maps.Clone(fields)
	maps.DeleteFunc(others, func(k string, _ json.RawMessage) bool { return k == name || k == "id" || k == "type" })
	if len(others) == 0 {
		return Call{Name: call.Name, Arguments: json.RawMessage("{}")}
	}
	return withArguments(call.Name, fields[key], key, hint)
}

// withArguments returns a call with the given arguments: an object, or a text that contains one, because some templates
// teach the latter. Models write null or an empty text for a call without arguments.
func withArguments(name string, arguments json.RawMessage, key, hint string) Call {
	var text string
	if json.Unmarshal(arguments, &text) == nil && json.Valid([]byte(text)) {
		arguments = json.RawMessage(text)
	}
	arguments = bytes.TrimSpace(arguments)
	if empty := string(arguments); empty == "null" || empty == `""` {
		arguments = json.RawMessage("{}")
	}
	if len(arguments) == 0 || arguments[0] != '{' {
		return Call{Name: name, Problem: fmt.Sprintf(`the call of %q has no %q object. %s`, name, key, hint)}
	}
	return Call{Name: name, Arguments: arguments}
}

// object returns the fields of a JSON object, or nil for another value. It does not decode into a struct, which would
// ignore the case of keys.
func object(raw json.RawMessage) map[string]json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	return fields
}

// readMarked reads calls that each begin with a mark. read reads the calls after a mark, and returns the index of their end.
func readMarked(text, mark string, read func(at int) (calls []Call, end int)) Reading {
	r := noCalls(text)
	for at := 0; ; {
		i := IndexUnquoted(text, at, mark)
		if i == len(text) {
			return r
		}
		r.Start = min(r.Start, i)
		calls, end := read(i + len(mark))
		r.Calls = append(r.Calls, calls...)
		r.End, at = end, end
	}
}

// skipMark returns the index after a mark that follows index i and white space. Without a mark there it returns i.
func skipMark(text string, i int, mark string) int {
	if at := skipSpace(text, i); mark != "" && strings.HasPrefix(text[at:], mark) {
		return at + len(mark)
	}
	return i
}

// skipSpace returns the first index from i on that is not white space.
func skipSpace(text string, i int) int {
	return len(text) - len(strings.TrimLeft(text[i:], " \t\r\n"))
}
