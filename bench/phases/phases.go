// Package phases measures the phases of a training step, as in a run: the engine's rollouts, the learner's update, and the whole step.
// The peers are Hugging Face's generate, its forward and backward pass, TRL and CoMLRL.
package phases

import (
	"context"
	"errors"
	"slices"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// Options holds the settings of a run.
type Options = measure.Options

// OnGPU returns a suite's rows of a GPU without measurements: names, shapes and targets.
func OnGPU(suite string) (rows []measure.Row) {
	for _, b := range gpuCases(suite) {
		rows = append(rows, b.row())
	}
	return rows
}

// Run measures one suite: "rollout", "learner" or "step".
func Run(ctx context.Context, suite string, o Options) (r *measure.Results, err error) {
	o, end := o.Hosted()
	defer func() { err = errors.Join(err, end()) }()
	all := casesOf(suite, o.Quick)
	onGPU := o.Device != "cpu" && !o.Quick // a quick run shows that the cases of a CPU work on a GPU, too
	if onGPU {
		all = gpuCases(suite)
	}
	var cases []measure.Case
	add := func(label string, run func(context.Context, Options) (measure.Row, error)) {
		cases = append(cases, measure.Case{Label: label, Measure: func(ctx context.Context) (measure.Row, error) { return run(ctx, o) }})
	}
	if suite == "rollout" && o.Device != "cpu" {
		for _, w := range sweepsOf(o.Quick) {
			cases = append(cases, w.cases(o)...)
			defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }() // if the last row did not run
			for _, c := range all {
				if c.weights.large && c.weights.name == w.network.name {
					add(c.name, c.measure)
				}
			}
		}
		all = slices.DeleteFunc(all, func(c bench) bool { return c.weights.large })
	}
	for _, c := range all {
		add(c.name, c.measure)
	}
	switch {
	case onGPU:
	case suite == "rollout":
		add(agentsLabel, agentsOf(o.Quick).measure)
	case suite == "step":
		add(teamLabel, teamOf(o.Quick).measure)
	}
	return measure.Run(ctx, suite, o, cases)
}
