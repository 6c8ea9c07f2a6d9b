// Package phases measures the phases of a training step as a run goes through them, the engine's rollouts and the
// learner's update, and the whole step, beside Hugging Face's generate, its forward and backward pass, and TRL.
package phases

import (
	"context"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// Options of a run.
type Options = measure.Options

// OnGPU are a suite's rows of a GPU, not measured: names, shapes and targets.
func OnGPU(suite string) (rows []measure.Row) {
	for _, b := range gpuCases(suite) {
		rows = append(rows, b.row())
	}
	return rows
}

// Run measures one suite: "rollout", "learner" or "step".
func Run(ctx context.Context, suite string, o Options) (*measure.Results, error) {
	all := casesOf(suite, o.Quick)
	if o.Device != "cpu" && !o.Quick {
		all = gpuCases(suite)
	}
	var cases []measure.Case
	for _, c := range all {
		cases = append(cases, measure.Case{Label: c.name, Measure: func(ctx context.Context) (measure.Row, error) { return c.measure(ctx, o) }})
	}
	return measure.Run(ctx, suite, o, cases)
}
