package verify_test

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// An answer in a box is compared as a number with the reference.
func ExampleNew() {
	v, err := verify.New(verify.Options{Kind: verify.Numeric, Tolerance: 0.01})
	if err != nil {
		panic(err)
	}
	q := task.Query{Text: "How long is the diagonal of a square of side 1?", Answer: "1.414"}
	for _, answer := range []string{`It is \boxed{1.41}.`, "about 1.5"} {
		score, err := v.Score(context.Background(), verify.Case{Query: q, Attempt: task.Attempt{Agent: "planner", Answer: answer}})
		fmt.Println(score, err)
	}
	// Output:
	// 1 <nil>
	// 0 <nil>
}
