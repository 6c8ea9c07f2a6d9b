package agent

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

const responseOpen, responseClose = "<tool_response>", "</tool_response>"

// describes reports whether the system message describes the functions, because the template does not print them.
func (t *Template) describes() bool { return len(t.cfg.Functions) > 0 && t.tools == nil }

// describeFunctions writes a system message that explains the functions and how to call them, for a template that does not print
// them. The example of a call has the notation in which the template prints calls. If the template prints no calls, the
// example has Hermes's notation.
func describeFunctions(t *Template) error {
	if !t.describes() {
		return nil
	}
	var b strings.Builder
	b.WriteString("# Tools\n\nYou may call these functions:\n<tools>\n")
	for _, d := range t.cfg.Functions {
		b.WriteString(t.Neutral(string(d)))
		b.WriteByte('\n')
	}
	example, err := exampleCall(t)
	if err != nil {
		return err
	}
	b.WriteString("</tools>\n\nTo call one, write its name and arguments like this:\n" + example)
	if !t.history.toolRole {
		b.WriteString("\nThe answer comes between " + responseOpen + " and " + responseClose + ".")
	} else {
		b.WriteString("\nThe answer follows.")
	}
	b.WriteString(" Without a call, what you write is your final answer.")
	t.prompt = b.String()
	text, err := t.render([]tokenizer.Message{{Role: "system", Content: probeTurn}, {Role: "user", Content: probeUser}}, t.tools, true)
	t.noSystem = err != nil || !strings.Contains(text, probeTurn)
	return nil
}

// exampleCall writes a call of the first function with "..." for each required argument.
func exampleCall(t *Template) (string, error) {
	var f struct {
		Function struct {
			Name       string `json:"name"`
			Parameters struct {
				Required []string `json:"required"`
			} `json:"parameters"`
		} `json:"function"`
	}
	if err := json.Unmarshal(t.cfg.Functions[0], &f); err != nil {
		return "", fmt.Errorf("tool definition %s: %w", t.cfg.Functions[0], err)
	}
	call := callformat.ProbeCall{ID: callformat.ProbeID, Name: t.Neutral(f.Function.Name)}
	arguments := &ordered.Object{}
	for _, r := range f.Function.Parameters.Required {
		call.Arguments = append(call.Arguments, callformat.Argument{Key: t.Neutral(r), Value: "..."})
		arguments.Set(t.Neutral(r), "...")
	}
	if t.history.calls {
		text, err := t.printCalls("", call)
		if err != nil {
			return "", err
		}
		text = callformat.TrimOpening(text, t.opening)
		read := t.calls.Read(text, t.functions)
		return strings.TrimSpace(text[read.Start:read.End]), nil
	}
	object, err := ordered.Dumps(arguments, ordered.Format{})
	return callformat.Hermes.Write([]callformat.Call{{Name: call.Name, Arguments: []byte(object)}}), err
}
