package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// Results is the content of an ablation's file. The file is written again after every run, so no finished run is lost.
type Results struct {
	What     string   `json:"what"`
	Commit   string   `json:"commit"` // of the program that began the file
	Machine  Machine  `json:"machine"`
	Settings Settings `json:"settings"`
	Starts   []Start  `json:"starts"`
	Runs     []Run    `json:"runs"`
}

// Machine describes the machine of the runs.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	Features string `json:"features"`
	LibTorch string `json:"libtorch"`
	Go       string `json:"go"`
}

// Settings holds the settings of all runs.
type Settings struct {
	Tokens  float64  `json:"tokens"`        // a run ends with the first step that reaches this many rollout tokens
	Every   int64    `json:"eval_every"`    // steps between evaluations
	Samples int      `json:"eval_samples"`  // rollouts of a held-out query in these evaluations
	Final   int      `json:"final_samples"` // rollouts of a held-out query at the start and the end
	Set     []string `json:"set,omitempty"` // configuration keys set for all runs
}

// Start is the evaluation of a cold start.
type Start struct {
	Name    string  `json:"name"`
	Seed    int     `json:"seed"`
	Outcome Outcome `json:"outcome"`
}

// Run is one arm with one seed.
type Run struct {
	Arm     string  `json:"arm"`
	Seed    int     `json:"seed"`
	Steps   int64   `json:"steps"`
	Tokens  float64 `json:"tokens"` // prompt, sampled and observed, of all agents' rollouts
	Seconds float64 `json:"seconds"`
	Age     float64 `json:"age"` // mean age of the trajectories that were trained on, in versions
	Final   Outcome `json:"final"`
	Curve   []Point `json:"curve"` // including start and end
}

// Outcome is an evaluation with all held-out queries.
type Outcome struct {
	Accuracy float64   `json:"accuracy"` // at temperature 1
	Hops     []float64 `json:"hops"`     // accuracy on questions of 1, 2, ... hops or parts
	Greedy   float64   `json:"greedy"`
	Calls    Calls     `json:"calls"`
	Expert   *float64  `json:"expert,omitempty"` // the researcher's expert score

	Questions []float64 `json:"questions"` // accuracy of each held-out question at temperature 1, by id
}

// Calls is d_k, the delegations of a rollout, over the rollouts at temperature 1.
type Calls struct {
	Mean      float64 `json:"mean"`
	Deviation float64 `json:"deviation"` // standard deviation within a question: the root of the mean variance
	Widest    [2]int  `json:"widest"`    // least and most calls of the question with the largest difference
	Rollouts  []int   `json:"rollouts"`  // number of rollouts with 0, 1, ... delegations
}

// Point of a learning curve: held-out accuracy after a number of rollout tokens.
type Point struct {
	Step     int64   `json:"step"`
	Tokens   float64 `json:"tokens"`
	Accuracy float64 `json:"accuracy"`
}

// average returns the mean accuracy of a curve over its tokens. It is higher for an arm that learns with fewer tokens.
func average(curve []Point) float64 { return averageBetween(curve, 0, curve[len(curve)-1].Tokens) }

// averageBetween returns the mean accuracy of a curve between two numbers of tokens, with straight lines between evaluations.
func averageBetween(curve []Point, from, to float64) float64 {
	var area float64
	for i, p := range curve[1:] {
		before := curve[i]
		at := func(tokens float64) float64 {
			return before.Accuracy + (p.Accuracy-before.Accuracy)*(tokens-before.Tokens)/(p.Tokens-before.Tokens)
		}
		if left, right := max(before.Tokens, from), min(p.Tokens, to); left < right {
			area += (at(left) + at(right)) / 2 * (right - left)
		}
	}
	return area / (to - from)
}

func (r *Results) start(name string, seed int) *Start {
	for i := range r.Starts {
		if s := &r.Starts[i]; s.Name == name && s.Seed == seed {
			return s
		}
	}
	return nil
}

func (r *Results) run(arm string, seed int) *Run {
	for i := range r.Runs {
		if x := &r.Runs[i]; x.Arm == arm && x.Seed == seed {
			return x
		}
	}
	return nil
}

// sort orders starts and runs independently of the order in which they ended.
func (r *Results) sort() {
	slices.SortFunc(r.Starts, func(a, b Start) int { return cmp.Or(cmp.Compare(a.Seed, b.Seed), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(r.Runs, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.Seed, b.Seed), cmp.Compare(slices.Index(armNames(arms), a.Arm), slices.Index(armNames(arms), b.Arm)))
	})
}

// open reads the first of these files that exists. It must have the same settings as fresh. If none exists, open returns fresh.
func open(fresh Results, paths ...string) (*Results, error) {
	for _, path := range paths {
		old, err := measure.ReadFile[Results](path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case !reflect.DeepEqual(old.Settings, fresh.Settings):
			return nil, fmt.Errorf("%s holds runs with other settings, %+v: choose another -out and -work or the same settings", path, old.Settings)
		}
		return old, nil
	}
	return &fresh, nil
}
