package agent

import (
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/agent/dialect"
)

// DemonstratedTurn is one turn of an agent in a written conversation.
type DemonstratedTurn struct {
	Text    string   // with or without the token that ends a turn
	Results []string // results of its calls, in the order issued; empty only in the last turn
}

// Demonstrate turns a written conversation into the tokens that Run would have collected; sampled marks the tokens of
// the agent's turns. Each turn ends with the template's end-of-turn token. Demonstrate returns an error if a call has
// an unknown name or arguments that do not fit, or if the number of results differs from the number of calls. The error
// names the turn, counted from 1.
func (c *Chat) Demonstrate(question string, turns []DemonstratedTurn) (tokens []int32, sampled []bool, err error) {
	add := func(ids []int32, own bool) {
		tokens = append(tokens, ids...)
		sampled = append(sampled, slices.Repeat([]bool{own}, len(ids))...)
	}
	t := c.template
	prompt, _, err := c.Prompt(question)
	if err != nil {
		return nil, nil, err
	}
	add(prompt, false)
	for i, turn := range turns {
		ids := t.cfg.Tokenizer.Encode(turn.Text)
		if len(ids) == 0 || !slices.Contains(t.stops, ids[len(ids)-1]) {
			ids = append(ids, t.end)
		}
		add(ids, true)
		results, err := demonstratedResults(c.Parse(ids).Calls, turn.Results, i == len(turns)-1)
		if err != nil {
			return nil, nil, fmt.Errorf("the agent's turn %d: %w", i+1, err)
		}
		if len(results) == 0 {
			continue
		}
		observed, _, err := c.Observe(ids, results)
		if err != nil {
			return nil, nil, err
		}
		add(observed, false)
	}
	return tokens, sampled, nil
}

// demonstratedResults pairs the calls of a turn with their results. The last turn may have no results.
func demonstratedResults(calls []dialect.Call, texts []string, last bool) ([]dialect.Result, error) {
	for _, call := range calls {
		if call.Problem != "" {
			return nil, &UndemonstrableError{call}
		}
	}
	switch {
	case last && len(texts) == 0:
		return nil, nil
	case len(calls) == 0 && len(texts) > 0:
		return nil, fmt.Errorf("%d result(s) follow it, but it makes no call", len(texts))
	case len(calls) == 0:
		return nil, fmt.Errorf("it makes no call, which ends the conversation, but another turn follows")
	case len(calls) != len(texts):
		return nil, fmt.Errorf("it makes %d call(s), but %d result(s) follow: give one result for each call", len(calls), len(texts))
	}
	results := make([]dialect.Result, len(calls))
	for i, call := range calls {
		results[i] = dialect.Result{Call: call, Text: texts[i]}
	}
	return results, nil
}

// UndemonstrableError is a demonstrated call that cannot be executed.
type UndemonstrableError struct{ Call dialect.Call }

func (e *UndemonstrableError) Error() string { return e.Call.Problem }

// DelegationText returns a call of a sub-agent in the Hermes format, for demonstrations. Every Template can read it. The
// JSON has no spaces because a word-level vocabulary may have a token for each piece between the values.
func DelegationText(name, task string) string {
	call, _ := callformat.Plain(struct { // texts can always be encoded
		Name      string            `json:"name"`
		Arguments map[string]string `json:"arguments"`
	}{name, map[string]string{taskArgument: task}})
	return callformat.HermesOpen + "\n" + string(call) + "\n" + callformat.HermesClose
}
