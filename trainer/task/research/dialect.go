package research

import (
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Tokenizer returns the word-level tokenizer of the task's vocabulary.
func (t *Task) Tokenizer() (*tokenizer.Tokenizer, error) {
	files, err := tokenizer.WordLevel{Vocab: vocabulary, Unk: vocabulary[0], Pad: vocabulary[0]}.Files()
	if err != nil {
		return nil, err
	}
	return tokenizer.Parse(files)
}

// Dialect returns the dialect of one conversation in the agent's role.
func (t *Task) Dialect(role task.AgentRole, words *tokenizer.Tokenizer) (dialect.Dialect, error) {
	grammarRole, err := roleOf(role)
	if err != nil {
		return nil, err
	}
	d := &wordDialect{grammar: &Grammar{role: grammarRole, limits: limitsOf(t.shape.Parts > 0)}, vocab: words}
	if grammarRole == Planner {
		d.grammar.subAgent = role.Delegates[0]
	}
	d.stops, err = d.ids(d.grammar.Stops())
	return d, err
}

// roleOf returns an agent's role in the grammar. It returns an error for settings that the grammar cannot express.
func roleOf(role task.AgentRole) (Role, error) {
	switch {
	case len(role.Tools) > 0:
		return "", fmt.Errorf("agents.%s.tools: the research task brings its own search and supports no other tool; remove tools", role.Agent)
	case role.System != "":
		return "", fmt.Errorf("agents.%s: the research task has no system prompt; remove prompt and prompt_text", role.Agent)
	case len(role.Delegates) > 1:
		return "", fmt.Errorf("agents.%s.delegates: the planner of the research task has exactly one sub-agent; found %d", role.Agent, len(role.Delegates))
	case !role.Main:
		return Researcher, nil
	case len(role.Delegates) == 0:
		return Single, nil
	}
	return Planner, nil
}

// wordDialect is the word-level grammar as a dialect.Dialect. It keeps the state of one conversation.
type wordDialect struct {
	grammar *Grammar
	vocab   *tokenizer.Tokenizer
	stops   []int32
}

// Prompt encodes a question or sub-task as the opening words of the conversation.
func (d *wordDialect) Prompt(task string) ([]int32, string, error) {
	return d.observed(d.grammar.Prompt(task))
}

// Stops returns the closing tags of the role's turns.
func (d *wordDialect) Stops() dialect.Stops {
	return dialect.Stops{IDs: d.stops, MaxNew: d.grammar.MaxNew()}
}

// Text joins a turn's words with spaces. A model with a padded embedding can sample an id outside the vocabulary; such
// an id becomes <id N>.
func (d *wordDialect) Text(turn []int32) string { return strings.Join(d.words(turn), " ") }

// Parse reads a turn and advances the grammar.
func (d *wordDialect) Parse(turn []int32) dialect.Action { return d.grammar.Step(d.words(turn)) }

// Observe encodes the result of the turn's call.
func (d *wordDialect) Observe(_ []int32, results []dialect.Result) ([]int32, string, error) {
	var words []string
	for _, r := range results {
		words = append(words, d.grammar.Observe(r.Text)...)
	}
	return d.observed(words)
}

func (d *wordDialect) observed(words []string) ([]int32, string, error) {
	ids, err := d.ids(words)
	return ids, strings.Join(words, " "), err
}

func (d *wordDialect) ids(words []string) ([]int32, error) {
	ids := make([]int32, len(words))
	for i, w := range words {
		id, ok := d.vocab.ID(w)
		if !ok {
			return nil, fmt.Errorf("the word %q is not in the model's vocabulary: the research task needs its own vocabulary (model.tokenizer: task)", w)
		}
		ids[i] = id
	}
	return ids, nil
}

func (d *wordDialect) words(ids []int32) []string {
	words := make([]string, len(ids))
	for i, id := range ids {
		if words[i] = d.vocab.Token(id); words[i] == "" {
			words[i] = fmt.Sprintf("<id %d>", id)
		}
	}
	return words
}
