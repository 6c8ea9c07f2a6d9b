package trainer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/textfile"
)

// Answers are the answers to one held-out question.
type Answers struct {
	Set      string    `json:"set,omitempty"` // as Score.Set
	Question string    `json:"question"`      // its id
	Digest   string    `json:"digest"`        // of its text and answer: ids alone may be those of other questions
	Correct  []float64 `json:"correct"`       // the score of each answer
}

// Difference is by how much the accuracy of one evaluation is above that of another of the same questions.
type Difference struct {
	Questions int        `json:"questions"`
	Before    float64    `json:"before"` // accuracy
	After     float64    `json:"after"`
	Mean      float64    `json:"mean"`
	Interval  [2]float64 `json:"interval"` // 95 % of the differences of questions drawn again, with replacement
}

// Compare pairs two evaluations by question: what makes a question hard for both is in neither side's favour, so the interval is
// narrower than those of the two accuracies let one think. The evaluations may have different numbers of answers to each.
func Compare(before, after []Answers, seed uint64) (d Difference, err error) {
	earlier, err := pair(before, after)
	if err != nil {
		return d, err
	}
	var first, last, all mean
	differences := make([]float64, len(after))
	for i, a := range after {
		now, err := a.mean()
		if err != nil {
			return d, err
		}
		differences[i] = now - earlier[i]
		first.add(earlier[i])
		last.add(now)
		all.add(differences[i])
	}
	return Difference{len(after), first.value(), last.value(), all.value(), bootstrap(differences, seed, "difference")}, nil
}

// pair is the earlier mean score of each question of an evaluation, which may have no answers yet. It is an error if the earlier one asked
// anything else.
func pair(before, questions []Answers) ([]float64, error) {
	if len(before) == 0 || len(before) != len(questions) {
		return nil, fmt.Errorf("evaluations of %d and of %d questions cannot be compared", len(before), len(questions))
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
		return nil, errors.New("an evaluation has a question twice")
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

// ReadAnswers reads the answers of an evaluation as Evaluation.JSON writes it.
func ReadAnswers(path string) ([]Answers, error) {
	const limit = 1 << 30
	data, err := durable.ReadSmall(path, limit)
	if err != nil {
		return nil, err
	}
	var e struct {
		Answers []Answers `json:"answers"`
	}
	if err := json.Unmarshal(textfile.Bytes(data), &e); err != nil {
		return nil, fmt.Errorf("%s is no evaluation: %w", path, err)
	}
	if len(e.Answers) == 0 {
		return nil, fmt.Errorf("%s has no \"answers\": want what mgrpo eval --json printed", path)
	}
	return e.Answers, nil
}

func (a Answers) mean() (float64, error) {
	var m mean
	for _, c := range a.Correct {
		m.add(c)
	}
	if !(m.value() >= 0 && m.value() <= 1) { // of no answer, or not of ours
		return 0, fmt.Errorf("the mean score of question %q is %v, not one from 0 to 1", a.Question, m.value())
	}
	return m.value(), nil
}

func digestOf(q task.Query) string {
	sum := sha256.Sum256([]byte(q.Text + "\x00" + q.Answer))
	return hex.EncodeToString(sum[:8])
}

// exported are the answers as an evaluation gives them away.
func exported(questions []answered) []Answers {
	out := make([]Answers, len(questions))
	for i, q := range questions {
		out[i] = answersTo(q.query, q.correct)
	}
	return out
}

// sameQuestions is an error if an evaluation that holds out n queries of each set does not ask what the earlier one asked.
func sameQuestions(earlier []Answers, t task.Task, n int) error {
	var questions []Answers
	for _, q := range task.HeldOut(t, n) {
		questions = append(questions, answersTo(q, nil))
	}
	_, err := pair(earlier, questions)
	return err
}

func answersTo(q task.Query, correct []float64) Answers {
	return Answers{q.Set, q.ID, digestOf(q), correct}
}
