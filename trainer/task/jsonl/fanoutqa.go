package jsonl

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// step is a node of FanOutQA's decomposition.
type step struct {
	Question string          `json:"question"`
	Answer   json.RawMessage `json:"answer"`
	Steps    []step          `json:"decomposition"`
}

// fanOutQA reads FanOutQA's rows. The parts are the steps of the decomposition; a step comes after its own sub-steps.
// Answers that are lists or objects of texts and numbers become texts: "a, b" and "key: value, key: value".
func fanOutQA(row, out object) (err error) {
	var whole step
	if err := reread(row, &whole); err != nil {
		return err
	}
	if out["answer"], err = asText(whole.Answer); err != nil {
		return err
	}
	var parts []part
	var flatten func(steps []step) error
	flatten = func(steps []step) error {
		for _, s := range steps {
			if err := flatten(s.Steps); err != nil {
				return err
			}
			answer, err := asText(s.Answer)
			if err != nil {
				return fmt.Errorf("decomposition: %q: %w", s.Question, err)
			}
			parts = append(parts, part{s.Question, answer})
		}
		return nil
	}
	if err := flatten(whole.Steps); err != nil {
		return err
	}
	return setParts(out, parts)
}

// asText converts a JSON value into a JSON text. True and false become yes and no, as in FanOutQA's own evaluation.
func asText(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, errors.New("no answer")
	}
	var pieces []string
	switch raw[0] {
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
		for _, x := range list {
			piece, err := pieceOf(x)
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, piece)
		}
	case '{':
		var fields object
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			piece, err := pieceOf(fields[key])
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, key+": "+piece)
		}
	default:
		piece, err := pieceOf(raw)
		return quoted(piece), err
	}
	return quoted(strings.Join(pieces, ", ")), nil
}

// pieceOf returns a text, a number or a boolean as a text.
func pieceOf(raw json.RawMessage) (text string, err error) {
	switch string(raw) {
	case "true":
		return "yes", nil
	case "false":
		return "no", nil
	}
	err = scalar(raw, &text)
	return text, err
}
