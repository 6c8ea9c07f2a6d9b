// Package task says where queries come from and how answers to them are judged. A task is a pure function
// of its settings and the run's seed, so any server can rebuild a query from its id.
package task

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// Query is one visit of a task row.
type Query struct {
	ID     string // Row, plus "#epoch=n" from the second visit on
	Row    string
	Text   string // the question as the main agent reads it
	Answer string // the reference answer, for verifiers and reports; never shown to an agent
	Data   any    // the task's own, rebuilt by Lookup (the research task keeps its knowledge base here)

	Accepted []string        // every answer that counts as right, Answer first; nil: Answer alone
	Columns  json.RawMessage // the row with all its columns, a JSON object; nil: the task has no rows
}

// Attempt is one answer of an agent to a query, and the conversation that led to it.
type Attempt struct {
	Agent        string
	Rollout      int
	Invocation   int    // 0 for the main agent
	Subtask      string // what the sub-agent was asked; "" for the main agent
	Answer       string
	Conversation []Message // of this agent alone: other agents' conversations are on their servers
}

// Message is a stretch of a conversation as text.
type Message struct {
	Role string `json:"role"` // "prompt" (all before the first answer), "assistant" or "observed" (results of calls)
	Text string `json:"text"`
}

// Task yields queries and judges answers. All methods may be called from several goroutines.
type Task interface {
	Name() string
	// Train returns the i-th query in training order, i >= 0, a pure function of the seed.
	Train(i int64) Query
	// Eval returns held-out query i, 0 <= i < EvalSize().
	Eval(i int) Query
	EvalSize() int
	// Lookup rebuilds a training or held-out query from its id.
	Lookup(id string) (Query, error)
	// VerifyMain scores the main agent's answer to q in [0,1].
	VerifyMain(ctx context.Context, q Query, a Attempt) (correct float64, err error)
	// VerifySub scores a sub-agent's answer to a sub-task of q in [0,1]: the expert score.
	VerifySub(ctx context.Context, q Query, a Attempt) (expert float64, err error)
}

// Close ends what a task holds for the time of a run, such as a program that scores answers.
func Close(t Task) error {
	if c, ok := t.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Part is the part that an agent plays in the team, for tasks that treat their agents differently.
type Part struct {
	Agent     string   // the agent's name
	Main      bool     // it is the main agent
	Delegates []string // agents that it may call, in the order of the configuration
	Tools     []string // tools that the configuration gives it
	System    string   // its system prompt; "" without one
}

// Toolkit is a task that brings tools of its own, bound to a query.
type Toolkit interface {
	// Tools are what the agent can call in a conversation on q, besides the tools of the configuration. Their names,
	// descriptions and schemas may depend on p alone: a system prompt shows those of the zero Query.
	Tools(q Query, p Part) []tool.Tool
}

// Speaker is a task whose agents speak a language of its own, in place of their models' chat templates.
type Speaker interface {
	// Tokenizer has the language's words: it is that of models which are trained from random weights.
	Tokenizer() (*tokenizer.Tokenizer, error)
	// Dialect starts a conversation. A part that the language has no words for is an error, and so is a
	// tokenizer without the language's words.
	Dialect(p Part, t *tokenizer.Tokenizer) (agent.Dialect, error)
}

// Demonstrator is a task that can show an agent how to behave, for the supervised cold start.
type Demonstrator interface {
	// Demonstrations yields n queries' conversations of an agent, in an order that depends on the seed alone. A
	// query yields as many as that agent had conversations in it.
	Demonstrations(p Part, n int) iter.Seq[Demonstration]
}

// Demonstration is one conversation of one agent.
type Demonstration struct {
	Query    string
	Agent    string
	Segments []Segment
	Verbatim bool // the segments hold every word of the dialect, from the prompt to what ends a turn
}

// Segment is a stretch of a demonstration. Only sampled segments are learned.
type Segment struct {
	Role    string // "user" (the question, first), "assistant" or "tool"; "system" too in a verbatim demonstration
	Text    string
	Sampled bool        // written by the agent itself; ends with the stop token where the dialect has one
	Call    *Delegation // of a sampled segment: a call of a sub-agent after Text, for the dialect to write
}

// Delegation is a call of a sub-agent.
type Delegation struct{ Agent, Subtask string }

// VisitID is the id of a visit of a row: epochs count from 0 and the first visit keeps the row's name.
func VisitID(row string, epoch int64) string {
	if epoch == 0 {
		return row
	}
	return row + "#epoch=" + strconv.FormatInt(epoch+1, 10)
}

// RowOf strips the visit from a query id.
func RowOf(id string) (string, error) {
	row, visit, revisited := strings.Cut(id, "#epoch=")
	if !revisited {
		return row, nil
	}
	if n, err := strconv.ParseInt(visit, 10, 64); err != nil || n < 2 {
		return "", fmt.Errorf("task: query id %q: the visit after #epoch= must be a number from 2", id)
	}
	return row, nil
}
