// Package compact is the dialect of the built-in research task: a word-level grammar in which one token
// is one word, for models that are trained from nothing.
package compact

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/task/research"
)

// QueryArgument is the one argument of the search tool: its words.
const QueryArgument = "query"

// Vocabulary maps words to ids and back; a *tokenizer.Tokenizer of the word-level kind is one.
type Vocabulary interface {
	ID(word string) (int32, bool)
	Token(id int32) string // "" for an id without a word
}

// Dialect holds the grammar's state of one conversation: make one for each.
type Dialect struct {
	grammar   *research.Grammar
	vocab     Vocabulary
	colleague string
	stops     []int32
}

var _ agent.Dialect = (*Dialect)(nil)

// New starts a conversation in a role of the research task; colleague is the sub-agent that a planner's
// calls go to. A vocabulary without the role's stop words is an error.
func New(role research.Role, vocab Vocabulary, colleague string) (*Dialect, error) {
	grammar, err := research.NewGrammar(role)
	if err != nil {
		return nil, err
	}
	d := &Dialect{grammar: grammar, vocab: vocab, colleague: colleague}
	if d.stops, err = d.ids(grammar.Stops()); err != nil {
		return nil, err
	}
	return d, nil
}

// Prompt opens the conversation with a question or sub-task in the task's words.
func (d *Dialect) Prompt(task string) ([]int32, string, error) {
	return d.observed(d.grammar.Prompt(task))
}

// Stops are the closing tags of the role's turns.
func (d *Dialect) Stops() agent.Stops {
	return agent.Stops{IDs: d.stops, MaxNew: d.grammar.MaxNew()}
}

// Text is a turn's words with spaces between. An id outside the vocabulary, which a model with padded
// embeddings can sample, shows as <id N>.
func (d *Dialect) Text(turn []int32) string { return strings.Join(d.words(turn), " ") }

// Parse advances the grammar by a turn.
func (d *Dialect) Parse(turn []int32) agent.Action {
	switch a := d.grammar.Step(d.words(turn)).(type) {
	case research.Call:
		return agent.Action{Calls: []agent.Call{{Name: d.colleague, Delegate: true, Task: a.Subtask}}}
	case research.Tool:
		return toolCall(a)
	case research.Continue:
		return agent.Action{}
	case research.Answer:
		return agent.Action{Final: true, Answer: a.Text}
	case research.Invalid:
		return agent.Action{Invalid: a.Reason}
	default:
		return agent.Action{Invalid: fmt.Sprintf("the grammar asks for %T, which a conversation cannot do", a)}
	}
}

func toolCall(a research.Tool) agent.Action {
	arguments, err := json.Marshal(map[string]string{QueryArgument: a.Args})
	if err != nil {
		return agent.Action{Invalid: err.Error()}
	}
	return agent.Action{Calls: []agent.Call{{Name: a.Name, Arguments: arguments}}}
}

// Observe appends the answer of the turn's call.
func (d *Dialect) Observe(_ []int32, results []agent.Result) ([]int32, string, error) {
	var words []string
	for _, r := range results {
		words = append(words, d.grammar.Observe(r.Text)...)
	}
	return d.observed(words)
}

func (d *Dialect) observed(words []string) ([]int32, string, error) {
	ids, err := d.ids(words)
	return ids, strings.Join(words, " "), err
}

func (d *Dialect) ids(words []string) ([]int32, error) {
	ids := make([]int32, len(words))
	for i, w := range words {
		id, ok := d.vocab.ID(w)
		if !ok {
			return nil, fmt.Errorf("the word %q is not in the model's vocabulary: the compact dialect needs the research task's own", w)
		}
		ids[i] = id
	}
	return ids, nil
}

func (d *Dialect) words(ids []int32) []string {
	words := make([]string, len(ids))
	for i, id := range ids {
		if words[i] = d.vocab.Token(id); words[i] == "" {
			words[i] = fmt.Sprintf("<id %d>", id)
		}
	}
	return words
}
