// Package verify scores an answer against a reference: by text, number, choice, pattern, or by asking a
// judge model. Answers come from a policy that is rewarded for them, so a verifier gives no credit to what
// it cannot read without doubt.
package verify

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// Case is one answer to score.
type Case struct {
	Question  string
	Reference string
	Answer    string
	Choices   []string // of a multiple-choice question; may be nil
}

// Verifier scores answers in [0,1]. It may be used by several goroutines. An error means that no score
// could be had (a judge that does not respond, a reference that cannot be read), never a wrong answer.
type Verifier interface {
	Score(ctx context.Context, c Case) (float64, error)
}

// Kinds of verifier.
const (
	Exact      = "exact"      // equal but for surrounding space
	Normalized = "normalized" // equal but for case, punctuation, articles and spacing
	Numeric    = "numeric"    // equal numbers: \boxed{}, ####, else the last number
	Choice     = "choice"     // the same letter or the same option
	Regex      = "regex"      // the pattern's first group, or its match, equals the reference
	Judge      = "judge"      // an OpenAI-compatible model's score
)

// Settings choose a verifier. Fields that the kind does not use are ignored.
type Settings struct {
	Kind      string
	Pattern   string  // regex: RE2
	Tolerance float64 // numeric: greatest absolute difference that counts as equal
	Judge     JudgeSettings
}

// New builds the verifier of a kind. The error names the setting that cannot be used.
func New(s Settings) (Verifier, error) {
	switch s.Kind {
	case Exact:
		return textVerifier(strings.TrimSpace), nil
	case Normalized:
		return textVerifier(normalize), nil
	case Numeric:
		return newNumeric(s.Tolerance)
	case Choice:
		return choiceVerifier{}, nil
	case Regex:
		pattern, err := regexp.Compile(s.Pattern)
		if err != nil || s.Pattern == "" {
			return nil, fmt.Errorf("verifier: pattern %q: needs a valid RE2 pattern: %v", s.Pattern, err)
		}
		return regexVerifier{pattern}, nil
	case Judge:
		return newJudge(s.Judge)
	}
	return nil, fmt.Errorf("verifier: kind %q: must be %s, %s, %s, %s, %s or %s", s.Kind, Exact, Normalized, Numeric, Choice, Regex, Judge)
}

func scoreOf(right bool) float64 {
	if right {
		return 1
	}
	return 0
}
