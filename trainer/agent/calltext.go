package agent

import (
	"bytes"
	"encoding/json"
)

// DelegationText returns a call of a sub-agent in the Hermes format, for demonstrations.
func DelegationText(name, task string) (string, error) { return CallText(name, taskArgument, task) }

// CallText returns a call of a function with one text as its argument in the Hermes format, for demonstrations.
func CallText(name, argument, value string) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	call := struct {
		Name      string            `json:"name"`
		Arguments map[string]string `json:"arguments"`
	}{name, map[string]string{argument: value}}
	if err := enc.Encode(call); err != nil {
		return "", err
	}
	return callOpen + "\n" + string(bytes.TrimSpace(b.Bytes())) + "\n" + callClose, nil
}

// AroundArguments returns what stands before and after the arguments, a JSON object, in a call of a function in the Hermes format.
func AroundArguments(name string) (before, after string) {
	quoted, err := marshalPlain(name)
	if err != nil {
		panic(err) // of a text
	}
	return callOpen + "\n" + `{"name": ` + string(quoted) + `, "arguments": `, "}\n" + callClose
}
