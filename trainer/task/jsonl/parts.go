package jsonl

import (
	"encoding/json"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/task"
)

const maxParts = 256

func tooManyParts(n int) error { return fmt.Errorf("%d parts; at most %d are read", n, maxParts) }

// readParts reads a list of sub-questions, each {"question", "answer"}. An answer is a text, or a list of accepted
// texts. Other fields of a part, such as the document with its answer, stay in the row's columns.
func readParts(raw json.RawMessage) ([]task.SubQuestion, error) {
	var list []struct {
		Question *string         `json:"question"`
		Answer   json.RawMessage `json:"answer"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf(`must be a list of {"question": ..., "answer": ...}: %w`, err)
	}
	if len(list) > maxParts {
		return nil, tooManyParts(len(list))
	}
	parts := make([]task.SubQuestion, len(list))
	for i, p := range list {
		if p.Question == nil || *p.Question == "" {
			return nil, fmt.Errorf("part %d has no question", i+1)
		}
		if len(p.Answer) == 0 {
			return nil, fmt.Errorf("part %d has no answer", i+1)
		}
		answer, accepted, err := readAnswer(p.Answer)
		if err != nil {
			return nil, fmt.Errorf("part %d: answer: %w", i+1, err)
		}
		parts[i] = task.SubQuestion{Question: *p.Question, Answer: answer, Accepted: accepted}
	}
	return parts, nil
}

// part is a sub-question in the form of a row.
type part struct {
	Question string          `json:"question"`
	Answer   json.RawMessage `json:"answer"`
}

func withParts(row object, parts []part) (object, error) {
	raw, err := json.Marshal(parts)
	row["parts"] = raw
	return row, err
}
