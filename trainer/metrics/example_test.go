package metrics_test

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// rewards prints the mean reward of each step. The embedded Observers make it a complete Observer.
type rewards struct{ metrics.Observers }

func (rewards) Report(r metrics.Record) {
	if r.Kind == metrics.KindStep {
		fmt.Printf("step %d of %s: reward %.2f\n", r.Step, r.Agent, r.Values[metrics.RewardMean])
	}
}

// An observer that needs only one method. A run calls it; it is the Observer of trainer.TrainOptions.
func ExampleObserver() {
	var o metrics.Observer = rewards{}
	o.Report(metrics.Record{Kind: metrics.KindStep, Step: 3, Agent: "planner", Values: map[string]float64{metrics.RewardMean: 0.5}})
	o.Note(metrics.Note{Agent: "planner", Text: "ignored"})
	// Output: step 3 of planner: reward 0.50
}
