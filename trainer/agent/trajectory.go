// Package agent runs a conversation of one agent: sampled turns, observations, tool calls and delegations to
// sub-agents, from the first prompt to the answer or a limit.
//
// A conversation only appends tokens. Sampled ids are kept as they are and are never decoded and encoded again. After a
// sampled turn only the template's delta is appended, even if the template would render the history differently. So the
// learner computes the log-probs of the sampled tokens in exactly the context in which they were sampled.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package agent

import (
	"fmt"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// Finish reasons of a trajectory. All but FinishAnswer mean an invalid format.
const (
	FinishAnswer  = "answer"  // the agent gave its final answer
	FinishFormat  = "format"  // a turn was outside the dialect's grammar
	FinishTurns   = "turns"   // Limits.Turns sampled turns without an answer
	FinishLength  = "length"  // a turn reached its token limit
	FinishTokens  = "tokens"  // the conversation reached Limits.Tokens
	FinishContext = "context" // the conversation reached the engine's context limit
	FinishWall    = "wall"    // the conversation reached Limits.Wall
	FinishFilter  = "filter"  // the server of a hosted model withheld a turn
	FinishProgram = "program" // the program that played the rollout failed
)

// Row is one token sequence of a trajectory, from its prompt to its last turn. Tokens, Sampled and LogProbs have equal
// length.
type Row struct {
	ID         string `json:"id"` // query/rollout, for a sub-agent query/rollout/agent/invocation; further rows append +1, +2, ...
	Query      string `json:"query"`
	Rollout    int    `json:"rollout"`
	Agent      string `json:"agent"`
	Invocation int    `json:"invocation"` // 0 for the main agent

	Tokens   []int32   `json:"tokens"`
	Sampled  []bool    `json:"sampled"`   // true if the policy sampled the token: these tokens are trained
	LogProbs []float32 `json:"log_probs"` // natural log of the probability under softmax(logits/tau) for sampled tokens; 0 for the others
	Version  int64     `json:"version"`   // oldest policy version that sampled a turn; in the first row, a turn of any row
	Routes   []uint16  `json:"-"`         // experts chosen for the first tokens, as in policy.Completion, each recorded when first computed
	Turns    []Turn    `json:"turns"`
}

// Trajectory holds all tokens that one agent read and sampled in one rollout (main agent) or one invocation
// (sub-agent). A hosted model's server returns no tokens: its trajectory has turns with texts, from token 0 to token 0,
// and perhaps a Usage. It is never trained on.
//
// The last prompt need not begin with the earlier ones: a conversation may be folded, and a program may rewrite its
// history. Such a trajectory has several rows. Each sampled token is marked Sampled in exactly one row.
type Trajectory struct {
	Row        // the first row
	More []Row `json:"-"` // further rows

	FormatValid bool           `json:"format_valid"`
	Malformed   int            `json:"malformed"` // calls that could not be parsed or executed; their result was an error
	Finish      string         `json:"finish"`    // one of the Finish constants
	Answer      string         `json:"answer"`    // empty unless Finish is FinishAnswer or FinishProgram
	Calls       map[string]int `json:"calls"`     // d_k: delegations issued per sub-agent

	Usage *Usage `json:"usage,omitempty"` // reported by the server of a hosted model; nil: not reported
}

// Usage is the number of tokens in a trajectory, as the server of a hosted model counts them.
type Usage struct {
	Tokens  int `json:"tokens"`  // the newest turn and everything before it
	Sampled int `json:"sampled"` // all turns, hidden reasoning included
}

// Turn is the range [From, To) of a trajectory's tokens, with their text.
type Turn struct {
	Role    string `json:"role"` // RolePrompt, RoleSampled or RoleObserved
	Text    string `json:"text"`
	Sampled bool   `json:"sampled"`
	From    int    `json:"from"`
	To      int    `json:"to"`

	Results []dialect.Result `json:"-"` // only in an observed turn: the results of the previous turn's calls, in the order issued
}

// Roles of a Turn.
const (
	RolePrompt   = "prompt"    // everything before the first sampled token
	RoleSampled  = "assistant" // sampled by the policy
	RoleObserved = "observed"  // results of calls, as the dialect renders them
)

// Rows returns the rows of a trajectory.
func (t *Trajectory) Rows() []*Row {
	rows := []*Row{&t.Row}
	for i := range t.More {
		rows = append(rows, &t.More[i])
	}
	return rows
}

// SampledTokens returns the number of tokens of a row that contribute to the loss.
func (r *Row) SampledTokens() int {
	n := 0
	for _, s := range r.Sampled {
		if s {
			n++
		}
	}
	return n
}

// Size returns the number of tokens of all rows, and the number of sampled ones. known is false for a hosted model
// whose server does not report them.
func (t *Trajectory) Size() (tokens, sampled int, known bool) {
	switch {
	case len(t.Tokens) > 0:
		for _, row := range t.Rows() {
			tokens, sampled = tokens+len(row.Tokens), sampled+row.SampledTokens()
		}
		return tokens, sampled, true
	case t.Usage != nil:
		return t.Usage.Tokens, t.Usage.Sampled, true
	}
	return 0, 0, false
}

// AllTurns returns the turns of all rows. Each row begins with the text that the agent read before its first turn in the
// row.
func (t *Trajectory) AllTurns() (turns []Turn) {
	for _, row := range t.Rows() {
		turns = append(turns, row.Turns...)
	}
	return turns
}

// SampledTurns returns the number of the agent's own turns.
func (t *Trajectory) SampledTurns() int {
	n := 0
	for _, turn := range t.AllTurns() {
		if turn.Sampled {
			n++
		}
	}
	return n
}

// Check returns the first inconsistency of a row that comes from outside: unequal lengths, turns that leave gaps or
// overlap, or a turn whose kind contradicts the mask.
func (r *Row) Check() error {
	n := len(r.Tokens)
	if len(r.Sampled) != n || len(r.LogProbs) != n {
		return fmt.Errorf("trajectory %s: %d tokens, %d mask entries, %d log-probs: want equal numbers", r.ID, n, len(r.Sampled), len(r.LogProbs))
	}
	at := 0
	for i, turn := range r.Turns {
		if turn.From != at || turn.To < turn.From || turn.To > n {
			return fmt.Errorf("trajectory %s: turn %d covers tokens [%d,%d), want it to start at %d and end within %d", r.ID, i, turn.From, turn.To, at, n)
		}
		for p := turn.From; p < turn.To; p++ {
			if r.Sampled[p] != turn.Sampled {
				return fmt.Errorf("trajectory %s: turn %d is sampled=%v but token %d is sampled=%v", r.ID, i, turn.Sampled, p, r.Sampled[p])
			}
		}
		at = turn.To
	}
	if at != n {
		return fmt.Errorf("trajectory %s: turns end at token %d of %d", r.ID, at, n)
	}
	return nil
}

// AppendObserved appends tokens that the policy reads.
func (r *Row) AppendObserved(role string, ids []int32, text string) {
	from := len(r.Tokens)
	r.Tokens = append(r.Tokens, ids...)
	r.Sampled = append(r.Sampled, make([]bool, len(ids))...)
	r.LogProbs = append(r.LogProbs, make([]float32, len(ids))...)
	r.Turns = append(r.Turns, Turn{Role: role, Text: text, From: from, To: len(r.Tokens)})
}

// AppendSampled appends a turn that the policy sampled.
func (r *Row) AppendSampled(c policy.Completion, text string) {
	from := len(r.Tokens)
	r.Tokens = append(r.Tokens, c.Tokens...)
	r.LogProbs = append(r.LogProbs, c.LogProbs...)
	if known := len(r.Routes); known < len(c.Routes) {
		r.Routes = append(r.Routes, c.Routes[known:]...)
	}
	for range c.Tokens {
		r.Sampled = append(r.Sampled, true)
	}
	r.Turns = append(r.Turns, Turn{Role: RoleSampled, Text: text, Sampled: true, From: from, To: len(r.Tokens)})
}

// TrajectoryID returns the id of a trajectory within a step: query/rollout for the main agent,
// query/rollout/agent/invocation for a sub-agent.
func TrajectoryID(k policy.Key, main bool) string {
	id := k.Query + "/" + strconv.Itoa(k.Rollout)
	if main {
		return id
	}
	return id + "/" + k.Agent + "/" + strconv.Itoa(k.Invocation)
}

// NewRow returns the first row of a conversation, without tokens.
func NewRow(k policy.Key, main bool) Row {
	return Row{ID: TrajectoryID(k, main), Query: k.Query, Rollout: k.Rollout, Agent: k.Agent, Invocation: k.Invocation}
}

// RowID returns the id of row n of a trajectory. Row 0 has the trajectory's own id.
func RowID(trajectory string, n int) string {
	if n == 0 {
		return trajectory
	}
	return trajectory + "+" + strconv.Itoa(n)
}
