package agent

import (
	"encoding/json"
	"fmt"
)

// CallablesOf reads OpenAI function definitions that a program offers to a model. Calls of them are checked like calls
// of an agent's own tools.
func CallablesOf(definitions []json.RawMessage) (*Callables, error) {
	c := &Callables{byName: map[string]callable{}}
	for _, d := range definitions {
		var parsed struct {
			Function struct {
				Name        string          `json:"name"`
				Description string          `json:"description"`
				Parameters  json.RawMessage `json:"parameters"`
			} `json:"function"`
		}
		if err := json.Unmarshal(d, &parsed); err != nil {
			return nil, fmt.Errorf("tool definition %s: %w", d, err)
		}
		schema := parsed.Function.Parameters
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		if err := c.add(parsed.Function.Name, parsed.Function.Description, schema, false); err != nil {
			return nil, err
		}
	}
	return c, nil
}
