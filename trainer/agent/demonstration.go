package agent

import (
	"fmt"
	"slices"
)

// DemonstratedTurn is what an agent says in a conversation that somebody wrote down.
type DemonstratedTurn struct {
	Text    string   // without the token that ends a turn
	Results []string // the answers to its calls, in the order issued; none: not demonstrated
}

// Demonstrate turns a written conversation into the tokens that Run would have collected, sampled marking those of
// the agent's own turns. The end-of-turn token is the first of Stops. A turn with a call that would be answered with
// an error of the machinery (an unknown name, arguments that do not fit), and results that are not one for each
// call, are errors that name the turn, counted from 1.
func (c *Chat) Demonstrate(question string, turns []DemonstratedTurn) (tokens []int32, sampled []bool, err error) {
	add := func(ids []int32, own bool) {
		tokens = append(tokens, ids...)
		sampled = append(sampled, slices.Repeat([]bool{own}, len(ids))...)
	}
	prompt, _, err := c.Prompt(question)
	if err != nil {
		return nil, nil, err
	}
	add(prompt, false)
	for i, turn := range turns {
		ids := append(c.cfg.Tokenizer.Encode(turn.Text), c.stops[0])
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

// demonstratedResults gives each call of a turn its result. The last turn's may be left out.
func demonstratedResults(calls []Call, texts []string, last bool) ([]Result, error) {
	for _, call := range calls {
		if call.Problem != "" {
			return nil, &UndemonstrableError{call}
		}
	}
	switch {
	case last && len(texts) == 0:
		return nil, nil
	case len(calls) == 0 && len(texts) > 0:
		return nil, fmt.Errorf("%d result(s) follow it, and it calls nothing", len(texts))
	case len(calls) == 0:
		return nil, fmt.Errorf("it calls nothing, which ends a conversation, and another turn follows")
	case len(calls) != len(texts):
		return nil, fmt.Errorf("it makes %d call(s), and %d result(s) follow", len(calls), len(texts))
	}
	results := make([]Result, len(calls))
	for i, call := range calls {
		results[i] = Result{Call: call, Text: texts[i]}
	}
	return results, nil
}

// UndemonstrableError is a demonstrated call that a conversation would answer with an error.
type UndemonstrableError struct{ Call Call }

func (e *UndemonstrableError) Error() string { return e.Call.Problem }
