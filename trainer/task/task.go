// Package task defines tasks. A task makes queries and scores answers. Its queries are a pure function of its settings
// and the run's seed, so every server can rebuild a query from its id.
package task

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// Query is a question of the task: one visit of a row.
type Query struct {
	ID     string // Row, plus "#epoch=n" from the second visit on
	Row    string
	Text   string // the question in the form that the main agent reads
	Answer string // the reference answer, for verifiers and reports; never shown to an agent
	Data   any    // data of the task, which Lookup rebuilds (the research task keeps its knowledge base here)

	Accepted []string        // all right answers, Answer first; nil: Answer only
	Parts    []SubQuestion   // in the order in which agents should ask them; nil: unknown
	Set      string          // name of the evaluation set; "": the task's own, or a training query
	Kind     string          // kind of question, for evaluations; "": unknown
	Level    string          // difficulty, for evaluations; "": unknown
	Columns  json.RawMessage // the row with all its columns, a JSON object; nil: the task has no rows
}

// SubQuestion is a part of a question with its own answer.
type SubQuestion struct {
	Question string
	Answer   string
	Accepted []string // all right answers, Answer first; nil: Answer only
}

// Attempt is an agent's answer to a query, with the conversation that led to it.
type Attempt struct {
	Agent        string
	Rollout      int
	Invocation   int    // 0 for the main agent
	Subtask      string // sub-task of the sub-agent; "" for the main agent
	Answer       string
	Conversation []Message // of this agent only: other agents' conversations are on their own servers
}

// Message is a part of a conversation as text.
type Message struct {
	Role string `json:"role"` // "prompt" (everything before the first answer), "assistant" or "observed" (results of calls)
	Text string `json:"text"`
}

// Task makes queries and scores answers. All methods may be called from several goroutines.
type Task interface {
	// Name returns the name in messages and reports.
	Name() string
	// Train returns training query i, i >= 0: a pure function of the seed and i.
	Train(i int64) Query
	// Eval returns held-out query i, 0 <= i < EvalSize().
	Eval(i int) Query
	// EvalSize returns the number of held-out queries, which never changes. With 0 nothing is evaluated.
	EvalSize() int
	// Lookup rebuilds a training or held-out query from its id. An unknown id is an error.
	Lookup(id string) (Query, error)
	// VerifyMain scores the main agent's answer to q in [0,1]. An error means that there is no score; the rollout is
	// then removed.
	VerifyMain(ctx context.Context, q Query, a Attempt) (correct float64, err error)
	// VerifySub scores a sub-agent's answer to a sub-task of q in [0,1]: the expert score. An error means that there is no score;
	// the rollout is then removed for every agent.
	VerifySub(ctx context.Context, q Query, a Attempt) (expert float64, err error)
}

// WithEvalSets is a task with several sets of held-out queries.
type WithEvalSets interface {
	// EvalSets returns the sizes of the sets, in the order of Eval.
	EvalSets() []int
}

// WithCurriculum is a task with a curriculum: stages that train on some of its rows.
type WithCurriculum interface {
	// TrainStage returns training query i of a stage, counted from 0: a pure function of the seed, the stage and i.
	TrainStage(stage int, i int64) Query
}

// EvalSetSizes returns the sizes of a task's sets of held-out queries, in the order of Eval. A task without WithEvalSets has one set.
func EvalSetSizes(t Task) []int {
	if d, ok := t.(WithEvalSets); ok {
		return d.EvalSets()
	}
	return []int{t.EvalSize()}
}

// HeldOut returns the first n held-out queries of each set, or all queries of a smaller set.
func HeldOut(t Task, n int) (queries []Query) {
	first := 0
	for _, size := range EvalSetSizes(t) {
		for i := range min(n, size) {
			queries = append(queries, t.Eval(first+i))
		}
		first += size
	}
	return queries
}

// Close releases the resources of a task that is an io.Closer, such as a program that scores answers.
func Close(t Task) error {
	if c, ok := t.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// AgentRole describes an agent's role in the team, for tasks that treat agents differently.
type AgentRole struct {
	Agent     string   // the agent's name
	Main      bool     // it is the main agent
	Delegates []string // sub-agents that it may call, in the order of the configuration
	Tools     []string // names of its tools in the configuration
	System    string   // its system prompt; may be empty
}

// WithTools is a task that brings its own tools, which are bound to a query.
type WithTools interface {
	// Tools returns the tools that the agent can call in a conversation on q, in addition to the tools of the
	// configuration. Their names, descriptions and schemas must not depend on q, because the system prompt describes
	// the tools of the zero Query.
	Tools(q Query, role AgentRole) []tool.Tool
}

// WithDialect is a task with its own dialect, which replaces the chat templates of the models.
type WithDialect interface {
	// Tokenizer returns a tokenizer with the dialect's words, for models with random initial weights.
	Tokenizer() (*tokenizer.Tokenizer, error)
	// Dialect returns the dialect of one conversation. It returns an error if the dialect does not support the role, or
	// if the tokenizer lacks words of the dialect.
	Dialect(role AgentRole, t *tokenizer.Tokenizer) (dialect.Dialect, error)
}

// WithDemonstrations is a task with demonstrations for the supervised cold start.
type WithDemonstrations interface {
	// Demonstrations yields an agent's conversations on n queries, in an order that depends only on the seed. It yields
	// all conversations of the agent on a query, which may be several or none.
	Demonstrations(role AgentRole, n int) iter.Seq[Demonstration]
}

// Demonstration is one conversation of one agent.
type Demonstration struct {
	Query    string
	Agent    string
	Segments []Segment
	Tools    []string       // functions that the agent must have, in addition to the functions that it calls
	Program  *ProgramPrompt // prompt and functions of a program that holds the agent's conversations; nil: the agent's own prompt
	Verbatim bool           // the segments contain every word of the dialect, from the prompt to the stop words
}

// ProgramPrompt holds a program's replacements for an agent's configured prompt and tools.
type ProgramPrompt struct {
	System    string            // system message; "": the configuration's
	Functions []json.RawMessage // OpenAI function definitions, {"type": "function", ...}
}

// Segment is a part of a demonstration. Only sampled segments are trained on.
type Segment struct {
	Role    string // "user" (the question, first), "assistant" or "tool"; "system" too in a verbatim demonstration
	Text    string
	Sampled bool        // written by the agent; ends with the stop token if the dialect has one
	Call    *Delegation // in a sampled segment without text: a call of a sub-agent in the Hermes format, which every agent reads

	// In a sampled segment, in the notation of the model's chat template:
	Thinking  string         // precedes Text
	Calls     []FunctionCall // follow Text; not together with Call
	Untrained bool           // the segment is read but not trained on
}

// FunctionCall is a call of a tool, or of a sub-agent. The only argument of a sub-agent is "task".
type FunctionCall struct {
	Name      string
	Arguments json.RawMessage // a JSON object
}

// Delegation is a call of a sub-agent.
type Delegation struct{ Agent, Subtask string }

// VisitID returns the query id of a row in an epoch. Epochs count from 0. In epoch 0 the id is the row's id.
func VisitID(row string, epoch int64) string {
	if epoch == 0 {
		return row
	}
	return row + "#epoch=" + strconv.FormatInt(epoch+1, 10)
}

// RowOf returns the row id of a query id.
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
