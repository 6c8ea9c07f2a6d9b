// Package score summarises and compares evaluations: accuracy, its interval, pass@k, the best of k. Its results are functions of the
// arguments only.
package score

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Answers holds the scores of the answers to one held-out question.
type Answers struct {
	Set      string    `json:"set,omitempty"` // the set, as in metrics.Score.Set
	Question string    `json:"question"`      // the id of the question
	Digest   string    `json:"digest"`        // a digest of text and reference answer, since equal ids may belong to different questions
	Correct  []float64 `json:"correct"`       // the score of each answer
}

// Difference compares the accuracies of two evaluations of the same questions.
type Difference struct {
	Questions int        `json:"questions"`
	Before    float64    `json:"before"`   // accuracy, in [0, 1]
	After     float64    `json:"after"`    // accuracy, in [0, 1]
	Mean      float64    `json:"mean"`     // After - Before, averaged over questions
	Interval  [2]float64 `json:"interval"` // interval that contains 95 % of the differences when questions are resampled with replacement
}

// Compare pairs two evaluations by question. A question that is hard for both favours neither, so the interval is
// narrower than the intervals of the two accuracies suggest. The evaluations may have different numbers of answers to a
// question. It returns an error if the questions or their texts differ, if a question occurs twice, or if it has no answer.
// seed is for the resampling of the interval.
func Compare(before, after []Answers, seed uint64) (d Difference, err error) {
	earlier, err := earlierMeans(before, after)
	if err != nil {
		return d, err
	}
	later, differences := make([]float64, len(after)), make([]float64, len(after))
	for i, a := range after {
		if later[i], err = a.mean(); err != nil {
			return d, err
		}
		differences[i] = later[i] - earlier[i]
	}
	return Difference{len(after), mean(earlier), mean(later), mean(differences), Interval(differences, seed, "difference")}, nil
}

// earlierMeans returns the mean score that each question of an evaluation had in the earlier one. The questions may have no
// answers yet. It returns an error if the earlier evaluation asked other questions.
func earlierMeans(before, questions []Answers) ([]float64, error) {
	if len(before) == 0 || len(before) != len(questions) {
		return nil, fmt.Errorf("evaluations of %d and %d questions cannot be compared", len(before), len(questions))
	}
	type known struct {
		mean   float64
		digest string
	}
	earlier := map[[2]string]known{}
	for _, a := range before {
		m, err := a.mean()
		if err != nil {
			return nil, err
		}
		earlier[[2]string{a.Set, a.Question}] = known{m, a.Digest}
	}
	if len(earlier) != len(before) {
		return nil, errors.New("an evaluation contains a question twice")
	}
	means := make([]float64, len(questions))
	for i, q := range questions {
		was, there := earlier[[2]string{q.Set, q.Question}]
		switch {
		case !there:
			return nil, fmt.Errorf("question %q is in one of the evaluations only, or twice", q.Question)
		case was.digest != q.Digest:
			return nil, fmt.Errorf("question %q is not the same in both evaluations: compare evaluations of the same questions", q.Question)
		}
		delete(earlier, [2]string{q.Set, q.Question})
		means[i] = was.mean
	}
	return means, nil
}

// File is an evaluation as mgrpo eval --json prints it.
type File struct {
	Checkpoint string           `json:"checkpoint"`
	Samples    int              `json:"samples"`
	Scores     []metrics.Score  `json:"scores"`
	Difference *Difference      `json:"difference,omitempty"`
	Tokens     *float64         `json:"tokens_per_question,omitempty"`
	Seconds    *float64         `json:"seconds_per_question,omitempty"`
	Agents     []metrics.Record `json:"agents"`
	Answers    []Answers        `json:"answers"`
}

// ReadAnswers reads the answers of a File, and ignores its other keys.
func ReadAnswers(path string) ([]Answers, error) {
	const limit = 1 << 30
	data, err := durable.ReadSmall(path, limit)
	if err != nil {
		return nil, err
	}
	var e struct {
		Answers []Answers `json:"answers"`
	}
	if err := json.Unmarshal(texts.Normalize(data), &e); err != nil {
		return nil, fmt.Errorf("%s is not an evaluation: %w", path, err)
	}
	if len(e.Answers) == 0 {
		return nil, fmt.Errorf("%s does not contain \"answers\": give a file with the output of mgrpo eval --json", path)
	}
	return e.Answers, nil
}

func (a Answers) mean() (float64, error) {
	m := mean(a.Correct)
	if !(m >= 0 && m <= 1) { // NaN (no answer), or outside our range
		return 0, fmt.Errorf("the mean score of question %q is %v; it must be from 0 to 1", a.Question, m)
	}
	return m, nil
}

// SameQuestions returns an error if an evaluation with n queries of each set asks other questions than the earlier one.
func SameQuestions(earlier []Answers, t task.Task, n int) error {
	var questions []Answers
	for _, q := range task.HeldOut(t, n) {
		questions = append(questions, AnswersTo(q, nil))
	}
	_, err := earlierMeans(earlier, questions)
	return err
}

// AnswersTo returns the answers to a held-out question in the form that an evaluation publishes, with the score of each.
func AnswersTo(q task.Query, correct []float64) Answers {
	sum := sha256.Sum256([]byte(q.Text + "\x00" + q.Answer))
	return Answers{q.Set, q.ID, hex.EncodeToString(sum[:8]), correct}
}
