package score_test

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/run/score"
)

// Two evaluations of the same three questions, with two answers to each. Every question gained a half, so the interval has no width.
func ExampleCompare() {
	before := []score.Answers{{Question: "q1", Correct: []float64{0, 1}}, {Question: "q2", Correct: []float64{0, 0}}, {Question: "q3", Correct: []float64{0, 1}}}
	after := []score.Answers{{Question: "q1", Correct: []float64{1, 1}}, {Question: "q2", Correct: []float64{0, 1}}, {Question: "q3", Correct: []float64{1, 1}}}
	d, err := score.Compare(before, after, 17)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d questions: %.2f before, %.2f after, gain %.2f in [%.2f, %.2f]\n", d.Questions, d.Before, d.After, d.Mean, d.Interval[0], d.Interval[1])
	// Output: 3 questions: 0.33 before, 0.83 after, gain 0.50 in [0.50, 0.50]
}
