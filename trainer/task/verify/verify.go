// Package verify scores answers. It compares an answer with the accepted answers as text, number, choice or pattern, or
// asks a judge model, a user's program or a TorchScript module. The policy is rewarded for its answers and may exploit
// a lenient verifier, so an ambiguous answer scores 0.
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
	Choices []string // options of a multiple-choice question, otherwise nil
}

// Question returns the sub-task of a sub-agent, or the query's question for the main agent.
func (c Case) Question() string {
	if c.Attempt.Subtask != "" {
		return c.Attempt.Subtask
	}
	return c.Query.Text
}

// Accepted returns the accepted answers, at least one.
func (c Case) Accepted() []string {
	if len(c.Query.Accepted) > 0 {
		return c.Query.Accepted
	}
	return []string{c.Query.Answer}
}

// Verifier scores answers in [0,1]. Several goroutines may use it. An error means that there is no score (the judge
// does not respond, the reference cannot be read); it never means that the answer is wrong. If a verifier is an
// io.Closer, Close frees its resources.
type Verifier interface {
	Score(ctx context.Context, c Case) (float64, error)
}

// Close frees the resources of a verifier. It may be called more than once.
func Close(v Verifier) error {
	if c, ok := v.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Kind is a kind of verifier.
type Kind string

// Kinds of verifier.
const (
	Exact      Kind = "exact"       // equal except for surrounding space
	Normalized Kind = "normalized"  // equal except for case, punctuation, articles and spacing
	ExactMatch Kind = "exact_match" // equal as SQuAD, HotpotQA, MuSiQue and 2WikiMultihopQA define it
	F1         Kind = "f1"          // the fraction of common words, as these benchmarks define it
	Quantity   Kind = "quantity"    // equal numbers with units of one dimension; texts as normalized
	Numeric    Kind = "numeric"     // equal numbers: in \boxed{} or after ####, otherwise the last number
	Choice     Kind = "choice"      // the same letter or the same option
	Regex      Kind = "regex"       // the pattern's first group, or its match, equals the reference
	Judge      Kind = "judge"       // an OpenAI-compatible model's score
	Program    Kind = "program"     // the score of a program in any language

	TorchScript Kind = "torchscript" // the score of a module that torch.jit.save wrote
)

// Options configure a verifier. Fields that the kind does not use are ignored.
type Options struct {
	Kind      Kind
	Pattern   string  // regex: RE2
	Tolerance float64 // numeric, quantity: largest difference that counts as equal
	Relative  float64 // the same, as a fraction of the reference; the larger of the two applies
	Judge     JudgeOptions
	Program   ProgramOptions

	TorchScript TorchScriptOptions
}

// New returns a verifier. Its error names the bad setting.
func New(opt Options) (Verifier, error) {
	switch opt.Kind {
	case Exact:
		return sameText(strings.TrimSpace), nil
	case Normalized:
		return sameText(normalize), nil
	case ExactMatch:
		return comparison(exactMatch), nil
	case F1:
		return f1{}, nil
	case Quantity:
		return newQuantity(opt.Tolerance, opt.Relative)
	case Numeric:
		return newNumeric(opt.Tolerance, opt.Relative)
	case Choice:
		return comparison(sameChoice), nil
	case Regex:
		pattern, err := regexp.Compile(opt.Pattern)
		if err != nil || opt.Pattern == "" {
			return nil, fmt.Errorf("verifier: pattern %q: needs a valid RE2 pattern: %v", opt.Pattern, err)
		}
		return lastMatch(pattern), nil
	case Judge:
		return newJudge(opt.Judge)
	case Program:
		return newProgram(opt.Program)
	case TorchScript:
		return newTorchScript(opt.TorchScript)
	}
	return nil, fmt.Errorf("verifier: kind %q: must be one of %v", opt.Kind, []Kind{Exact, Normalized, ExactMatch, F1, Quantity, Numeric, Choice, Regex, Judge,
		Program, TorchScript})
}

// Readable returns the error of a verifier that can read none of a question's accepted answers. It returns nil for a verifier that does
// not compare answers with them.
func Readable(v Verifier, q task.Query, choices []string) error {
	equal, ok := v.(comparison)
	if !ok {
		return nil
	}
	_, err := equal.Score(context.Background(), Case{Query: q, Choices: choices})
	return err
}

// comparison reports whether an answer equals a reference. An error means that the reference cannot be read.
type comparison func(reference string, c Case) (bool, error)

// Score returns 1 if the answer equals any accepted answer, and otherwise 0. It returns an error if no accepted answer
// can be read.
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
