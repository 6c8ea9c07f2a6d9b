// Package verify scores an answer: by comparing it with the accepted ones as text, number, choice or pattern, by asking
// a judge model, a program of the user's or a TorchScript module. Answers come from a policy that is rewarded for them, so a
// verifier gives no credit to what it cannot read without doubt.
package verify

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Case is one answer to score.
type Case struct {
	Query   task.Query
	Attempt task.Attempt
	Choices []string // of a multiple-choice question; may be nil
}

// Question is what the agent was asked: a sub-agent its sub-task, the main agent the query's question.
func (c Case) Question() string {
	if c.Attempt.Subtask != "" {
		return c.Attempt.Subtask
	}
	return c.Query.Text
}

// Accepted are the answers that count as right, at least one.
func (c Case) Accepted() []string {
	if len(c.Query.Accepted) > 0 {
		return c.Query.Accepted
	}
	return []string{c.Query.Answer}
}

// Verifier scores answers in [0,1]. It may be used by several goroutines. An error means that no score
// could be had (a judge that does not respond, a reference that cannot be read), never a wrong answer.
// A verifier that is an io.Closer holds something for the time of the run.
type Verifier interface {
	Score(ctx context.Context, c Case) (float64, error)
}

// Close ends what a verifier holds. It may be called more than once.
func Close(v Verifier) error {
	if c, ok := v.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Kinds of verifier.
const (
	Exact      = "exact"      // equal but for surrounding space
	Normalized = "normalized" // equal but for case, punctuation, articles and spacing
	Numeric    = "numeric"    // equal numbers: \boxed{}, ####, else the last number
	Choice     = "choice"     // the same letter or the same option
	Regex      = "regex"      // the pattern's first group, or its match, equals the reference
	Judge      = "judge"      // an OpenAI-compatible model's score
	Program    = "program"    // the score of a program in any language

	TorchScript = "torchscript" // the score of a module that torch.jit.save wrote
)

// Settings choose a verifier. Fields that the kind does not use are ignored.
type Settings struct {
	Kind      string
	Pattern   string  // regex: RE2
	Tolerance float64 // numeric: greatest absolute difference that counts as equal
	Judge     JudgeSettings
	Program   ProgramSettings

	TorchScript TorchScriptSettings
}

// New builds the verifier of a kind. The error names the setting that cannot be used.
func New(s Settings) (Verifier, error) {
	switch s.Kind {
	case Exact:
		return sameText(strings.TrimSpace), nil
	case Normalized:
		return sameText(normalize), nil
	case Numeric:
		return newNumeric(s.Tolerance)
	case Choice:
		return comparison(sameChoice), nil
	case Regex:
		pattern, err := regexp.Compile(s.Pattern)
		if err != nil || s.Pattern == "" {
			return nil, fmt.Errorf("verifier: pattern %q: needs a valid RE2 pattern: %v", s.Pattern, err)
		}
		return lastMatch(pattern), nil
	case Judge:
		return newJudge(s.Judge)
	case Program:
		return newProgram(s.Program)
	case TorchScript:
		return newTorchScript(s.TorchScript)
	}
	return nil, fmt.Errorf("verifier: kind %q: must be %s, %s, %s, %s, %s, %s, %s or %s", s.Kind, Exact, Normalized, Numeric, Choice, Regex, Judge, Program, TorchScript)
}

// comparison says whether an answer equals one of the accepted ones. An error means that this reference cannot be read.
type comparison func(reference string, c Case) (bool, error)

// Score is 1 if the answer equals any accepted answer. It is an error if no accepted answer can be read.
func (equal comparison) Score(_ context.Context, c Case) (float64, error) {
	var unreadable error
	readable := false
	for _, reference := range c.Accepted() {
		right, err := equal(reference, c)
		switch {
		case err != nil:
			unreadable = err
		case right:
			return 1, nil
		default:
			readable = true
		}
	}
	if readable {
		return 0, nil
	}
	return 0, unreadable
}
