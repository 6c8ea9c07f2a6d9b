package jsonl

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// musique reads MuSiQue's rows. Any of answer and answer_aliases is right. "#n" in a step of question_decomposition
// stands for the answer of step n. The kind is the id's first word, such as 3hop1.
func musique(row, out object) error {
	var extra struct {
		ID         string   `json:"id"`
		Answer     string   `json:"answer"`
		Aliases    []string `json:"answer_aliases"`
		Answerable *bool    `json:"answerable"`
		Steps      []struct {
			Question string `json:"question"`
			Answer   string `json:"answer"`
		} `json:"question_decomposition"`
	}
	if err := reread(row, &extra); err != nil {
		return err
	}
	if extra.Answerable != nil && !*extra.Answerable {
		return errors.New("answerable is false: there is no answer to compare with; use the files of answerable questions, musique_ans_*")
	}
	accepted := []string{extra.Answer}
	for _, alias := range extra.Aliases {
		if !slices.Contains(accepted, alias) {
			accepted = append(accepted, alias)
		}
	}
	out["answer"], _ = json.Marshal(accepted) // texts always marshal
	if kind, _, ok := strings.Cut(extra.ID, "__"); ok {
		out["kind"] = quoted(kind)
	}
	if len(extra.Steps) > maxParts {
		return fmt.Errorf("question_decomposition: %w", tooManyParts(len(extra.Steps)))
	}
	parts, answers := make([]part, len(extra.Steps)), []string(nil)
	room := maxLine
	for i, step := range extra.Steps {
		question, err := filledIn(step.Question, answers, &room)
		if err != nil {
			return fmt.Errorf("question_decomposition: %w", err)
		}
		parts[i], answers = part{question, quoted(step.Answer)}, append(answers, step.Answer)
	}
	return setParts(out, parts)
}

var stepNumber = regexp.MustCompile(`#\d+`)

// filledIn replaces #n with the nth answer, and keeps #n if there is no such answer. It does not replace #n inside
// answers. It subtracts the bytes that it fills in from room, and returns an error if room is exhausted.
func filledIn(question string, answers []string, room *int) (string, error) {
	out := stepNumber.ReplaceAllStringFunc(question, func(name string) string {
		n, err := strconv.Atoi(name[1:])
		if err != nil || n < 1 || n > len(answers) || *room < 0 {
			return name
		}
		if *room -= len(answers[n-1]); *room < 0 {
			return name
		}
		return answers[n-1]
	})
	if *room < 0 {
		return "", errTooLong
	}
	return out, nil
}
