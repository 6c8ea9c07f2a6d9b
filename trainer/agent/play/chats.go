package play

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
)

// Chats is a file of demonstrations: JSON lines, a JSON array, or Parquet. Each row is {"agent": NAME, "messages":
// [...]} with messages in OpenAI's form, or {"conversations": [...]} in ShareGPT's form. agent is optional if all
// agents learn from all chats. Consecutive tool messages are the results of one turn's calls.
type Chats struct {
	Path    string
	Agents  []string // agents that may have chats
	Program bool     // a program holds the conversations: a chat may begin with its system message, and its tools are its functions
	Alone   bool     // the run has a single agent, which learns from all chats
	Err     error    // error of the last Demonstrations; nil if it found none before it ended
	Beyond  int      // number of the agent's chats after the first n of the last Demonstrations
}

// maxChat is the size of the largest chat, in bytes.
const maxChat = 16 << 20

// errEnough stops the reading of a file.
var errEnough = errors.New("enough")

// Demonstrations implements task.WithDemonstrations. It yields the agent's first n chats, reads the others, and counts them in Beyond. It
// stops at the first bad row and puts the error into Err.
func (c *Chats) Demonstrations(role task.AgentRole, n int) iter.Seq[task.Demonstration] {
	return func(yield func(task.Demonstration) bool) {
		filled, err := jsonl.IsParquet(c.Path)
		if err != nil {
			c.Err = err
			return
		}
		given := 0
		c.Beyond = 0
		c.Err = jsonl.EachRow(c.Path, maxChat, func(row int, text []byte) error {
			if filled {
				if text, err = withoutFills(text); err != nil {
					return err
				}
			}
			d, err := parseChat(text, c.Program)
			if err == nil && d.Agent != "" && !slices.Contains(c.Agents, d.Agent) {
				err = fmt.Errorf("there is no agent %q: %s", d.Agent, strings.Join(c.Agents, ", "))
			}
			if err != nil {
				return err
			}
			if d.Agent != "" && d.Agent != role.Agent && !c.Alone {
				return nil
			}
			if given == n {
				c.Beyond++
				return nil
			}
			d.Query = fmt.Sprintf("%s:%d", c.Path, row)
			given++
			if !yield(d) {
				return errEnough
			}
			return nil
		})
		if errors.Is(c.Err, errEnough) {
			c.Err = nil
		}
	}
}

// fields are the keys of a JSON object.
type fields map[string]json.RawMessage

// has reports whether a key has a value. If rows have different keys, tables fill the gaps with null, or with an empty text or list.
func (f fields) has(key string) bool {
	switch string(f[key]) {
	case "", "null", "[]", "{}", `""`:
		return false
	}
	return true
}

// read decodes the value of a key into v, if the key has one.
func (f fields) read(key string, v any) error {
	if !f.has(key) {
		return nil
	}
	if err := json.Unmarshal(f[key], v); err != nil {
		return fmt.Errorf("%q: %w", key, err)
	}
	return nil
}

// list decodes a list, or a text that contains one.
func (f fields) list(key string, v *[]json.RawMessage) error {
	if !f.has(key) {
		return nil
	}
	if err := json.Unmarshal(jsonl.List(f[key]), v); err != nil {
		return fmt.Errorf("%q must be a list", key)
	}
	return nil
}

// refuse returns an error that names the first of the given keys that has a value.
func (f fields) refuse(keys ...string) error {
	for _, key := range keys {
		if f.has(key) {
			return fmt.Errorf("%q is not supported: remove it, because training would silently ignore it", key)
		}
	}
	return nil
}

// parseChat reads a row: a conversation of a program, or of the agent itself. It returns an error for an unsupported
// key that would change what the model learns. It ignores other keys, such as an id.
func parseChat(text []byte, program bool) (d task.Demonstration, err error) {
	var row fields
	if err := json.Unmarshal(text, &row); err != nil || row == nil {
		return d, fmt.Errorf("not a JSON object: %v", err)
	}
	if row.has("system") {
		return d, errors.New(`"system" is not supported: the system prompt comes from the configuration`)
	}
	if err := row.refuse("functions", "function_call", "completion", "chosen", "rejected",
		"images", "audios", "videos", "documents", "chat_template_kwargs", "mask"); err != nil {
		return d, err
	}
	if string(row["weight"]) != "1" && string(row["weight"]) != "1.0" {
		if err := row.refuse("weight"); err != nil {
			return d, err
		}
	}
	if err := row.read("agent", &d.Agent); err != nil {
		return d, err
	}
	functions, names, err := functionsOf(row["tools"])
	if err != nil {
		return d, fmt.Errorf(`"tools": %w`, err)
	}
	if row.has("messages") && row.has("conversations") {
		return d, errors.New(`it has both "messages" and "conversations": keep one`)
	}
	var messages []json.RawMessage
	if err := errors.Join(row.list("messages", &messages), row.list("conversations", &messages)); err != nil {
		return d, err
	}
	if !program {
		d.Tools = names
	} else if d.Program, messages, err = ownOf(functions, messages); err != nil {
		return d, err
	}
	d.Segments, err = segmentsOf(messages)
	return d, err
}

// ownOf separates the system message from a program's conversation. own is nil if the conversation has neither a system
// message nor functions.
func ownOf(functions []json.RawMessage, messages []json.RawMessage) (own *task.ProgramPrompt, rest []json.RawMessage, err error) {
	own = &task.ProgramPrompt{Functions: functions}
	if len(messages) > 0 {
		first, err := parseMessage(messages[0])
		if err != nil {
			return nil, nil, fmt.Errorf("message 1: %w", err)
		}
		if first.Role == "system" {
			own.System, messages = first.Text, messages[1:]
		}
	}
	if own.System == "" && len(functions) == 0 {
		return nil, messages, nil
	}
	return own, messages, nil
}

// functionsOf returns the definitions of a row's functions in the form of requests, and their names. Tables store the
// definitions as text.
func functionsOf(raw json.RawMessage) (definitions []json.RawMessage, names []string, err error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = json.RawMessage(text)
	}
	if !(fields{"tools": raw}).has("tools") {
		return nil, nil, nil
	}
	var tools []json.RawMessage
	if err := json.Unmarshal(raw, &tools); err != nil {
		return nil, nil, err
	}
	for i, tool := range tools {
		definition, name, err := functionOf(tool)
		if err != nil {
			return nil, nil, fmt.Errorf("definition %d %w", i+1, err)
		}
		definitions, names = append(definitions, definition), append(names, name)
	}
	return definitions, names, nil
}

// functionOf returns a definition in the form {"type": "function", "function": {...}}, without spaces, in the form that
// the gateway makes from a request.
func functionOf(raw json.RawMessage) (definition json.RawMessage, name string, err error) {
	var text string
	if json.Unmarshal(raw, &text) == nil { // its JSON text
		raw = json.RawMessage(text)
	}
	var named struct {
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return nil, "", fmt.Errorf("is not an object: %w", err)
	}
	if name = named.Function.Name; name == "" && named.Name != "" {
		name, raw = named.Name, slices.Concat([]byte(`{"type": "function", "function": `), raw, []byte("}"))
	}
	if name == "" {
		return nil, "", errors.New("has no name of a function")
	}
	v, err := ordered.Parse(raw)
	if err != nil {
		return nil, "", err
	}
	text, err = ordered.Dumps(v, ordered.Format{ItemSeparator: ",", KeySeparator: ":"})
	return json.RawMessage(text), name, err
}

// segmentsOf reads the messages of a chat.
func segmentsOf(messages []json.RawMessage) (segments []task.Segment, err error) {
	trained := false
	var turn message      // the agent's last turn
	var results []message // results that follow it
	flush := func() error {
		ordered, err := turn.inOrder(results)
		for _, r := range ordered {
			segments = append(segments, r.Segment)
		}
		results = nil
		return err
	}
	for i, raw := range messages {
		m, err := parseMessage(raw)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i+1, err)
		}
		possible := []string{"assistant", "tool"}
		switch i {
		case 0:
			possible = []string{"user"} // the system prompt comes from the configuration, as in a conversation
		case 1:
			possible = []string{"assistant"}
		}
		if !slices.Contains(possible, m.Role) {
			return nil, fmt.Errorf("message %d has the role %q; the first must be user, the second assistant, and all others assistant or tool", i+1, m.Role)
		}
		if m.Role == "tool" {
			results = append(results, m)
			continue
		}
		if i == 0 && m.Text == "" {
			return nil, errors.New("message 1 is empty")
		}
		if err := flush(); err != nil {
			return nil, fmt.Errorf("the results before message %d: %w", i+1, err)
		}
		segments, turn = append(segments, m.Segment), m
		trained = trained || m.Sampled && !m.Untrained
	}
	if err := flush(); err != nil {
		return nil, fmt.Errorf("the last results: %w", err)
	}
	switch {
	case len(segments) < 2:
		return nil, errors.New("a chat must have at least a user's message and an assistant's answer")
	case !trained:
		return nil, errors.New("every turn has the weight 0: there is nothing to learn")
	}
	return segments, nil
}
