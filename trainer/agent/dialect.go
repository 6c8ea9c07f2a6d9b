package agent

import "encoding/json"

// Dialect is the language between a policy and its surroundings: how a prompt becomes token ids, when
// a sampled turn ends, what a turn means, and which tokens carry the answers to its calls. A Dialect may
// hold the state of one conversation's grammar; Chat holds none and may be shared.
type Dialect interface {
	// Prompt returns the tokens before the first sampled one, and their text, for a question or sub-task.
	Prompt(task string) (ids []int32, text string, err error)

	// Stops says when a sampled turn ends.
	Stops() Stops

	// Text is a sampled turn as people read it.
	Text(turn []int32) string

	// Parse says what the conversation's next sampled turn means. The turn ended in one of Stops. Parse
	// never fails: what cannot be understood becomes Action.Invalid or a Call with a Problem.
	Parse(turn []int32) Action

	// Observe returns the tokens, and their text, to append after turn so that the policy reads results
	// (one for each of the turn's calls, in the order issued) and samples its next turn.
	Observe(turn []int32, results []Result) (ids []int32, text string, err error)
}

// Stops ends a sampled turn: at one of IDs, when its text holds one of Strings, or after MaxNew tokens
// (0 leaves the limit to Limits.TurnTokens).
type Stops struct {
	IDs     []int32
	Strings []string
	MaxNew  int
}

// Action is the meaning of a sampled turn: calls, or a final answer, or Invalid. One that is none of
// them lets the agent speak again without an observation.
type Action struct {
	Calls   []Call
	Final   bool // Answer holds the final answer, which may be empty
	Answer  string
	Invalid string // why the turn is outside the grammar: ends the conversation with an invalid format
}

// Call is one delegation or tool call.
type Call struct {
	Name      string
	Delegate  bool // Name is a sub-agent, Task what it is asked
	Task      string
	Arguments json.RawMessage // of a tool: a JSON object
	Problem   string          // the call cannot be executed and is answered with this text
}

// Result answers a Call.
type Result struct {
	Call Call
	Text string
}
