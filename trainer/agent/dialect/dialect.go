// Package dialect defines the interface of languages. An agent writes its turns in a language: its chat template's, or the task's
// own.
package dialect

import "encoding/json"

// Dialect translates between the policy's tokens and the conversation: it encodes prompts and the results of calls,
// decides when a sampled turn ends, and parses turns. A Dialect may keep the state of one conversation. Chat keeps
// none, so conversations may share it.
type Dialect interface {
	// Prompt returns the tokens before the first sampled token, and their text, for a question or sub-task.
	Prompt(task string) (ids []int32, text string, err error)

	// Stops returns the conditions that end a sampled turn.
	Stops() Stops

	// Text returns a sampled turn as text for people.
	Text(turn []int32) string

	// Parse interprets the conversation's next sampled turn, which ended at one of Stops. Parse never fails: if it
	// cannot read a turn, it returns Action.Invalid or a Call with a Problem.
	Parse(turn []int32) Action

	// Observe returns the tokens to append after turn, and their text: the results, one for each call in the order
	// issued, and the opening of the next turn.
	Observe(turn []int32, results []Result) (ids []int32, text string, err error)
}

// Stops holds the conditions that end a sampled turn: a token of IDs, a text that contains one of Strings, or MaxNew
// tokens (0: only Limits.TurnTokens applies).
type Stops struct {
	IDs     []int32
	Strings []string
	MaxNew  int
}

// Action is the meaning of a sampled turn: calls, a final answer, or Invalid. If it is none of these, the agent samples
// another turn without an observation.
type Action struct {
	Calls   []Call
	Final   bool // Answer is the final answer, which may be empty
	Answer  string
	Invalid string // the reason why the turn is outside the grammar; it ends the conversation with an invalid format
}

// Call is one delegation or tool call.
type Call struct {
	Name      string
	Delegate  bool // Name is a sub-agent and Task its sub-task
	Task      string
	Arguments json.RawMessage // a tool's arguments: a JSON object
	Problem   string          // the reason why the call cannot be executed; becomes the text of its result
}

// Result is the result of a Call.
type Result struct {
	Call Call
	Text string
}
