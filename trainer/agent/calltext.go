package agent

import (
	"bytes"
	"encoding/json"
)

// ToolCallText returns a call of a sub-agent in the Hermes format, for demonstrations.
func ToolCallText(name, task string) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	call := struct {
		Name      string            `json:"name"`
		Arguments map[string]string `json:"arguments"`
	}{name, map[string]string{taskArgument: task}}
	if err := enc.Encode(call); err != nil {
		return "", err
	}
	return callOpen + "\n" + string(bytes.TrimSpace(b.Bytes())) + "\n" + callClose, nil
}
