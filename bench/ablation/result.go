package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
)

// Results is the file of an ablation. It is written anew after every run, so that no finished run is lost.
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

// Settings are what all runs have in common.
type Settings struct {
	Tokens  float64  `json:"tokens"`        // a run ends with the first step that reaches this many rollout tokens
	Every   int64    `json:"eval_every"`    // steps between evaluations
	Samples int      `json:"eval_samples"`  // rollouts of a held-out query in these
	Final   int      `json:"final_samples"` // and in the evaluations at the start and the end
	Set     []string `json:"set,omitempty"` // configuration keys set for all runs
}

// Start is the evaluation of a cold start, with which its arms begin.
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
	Final   Outcome `json:"final"`
	Curve   []Point `json:"curve"` // start and end included
}

// Outcome is an evaluation with all held-out queries.
type Outcome struct {
	Accuracy float64   `json:"accuracy"` // at temperature 1
	Hops     []float64 `json:"hops"`     // the same for questions of 1, 2 and 3 hops
	Greedy   float64   `json:"greedy"`
	Calls    float64   `json:"calls"`            // delegations a rollout
	Expert   *float64  `json:"expert,omitempty"` // the researcher's expert score
}

// Point of a learning curve: held-out accuracy after a number of rollout tokens.
type Point struct {
	Step     int64   `json:"step"`
	Tokens   float64 `json:"tokens"`
	Accuracy float64 `json:"accuracy"`
}

// at interpolates a curve linearly between its evaluations. Beyond its end known is false.
func at(curve []Point, tokens float64) (accuracy float64, known bool) {
	for i, p := range curve {
		if p.Tokens < tokens {
			continue
		}
		if i == 0 {
			return p.Accuracy, p.Tokens == tokens
		}
		before := curve[i-1]
		return before.Accuracy + (p.Accuracy-before.Accuracy)*(tokens-before.Tokens)/(p.Tokens-before.Tokens), true
	}
	return 0, false
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

// open reads a file of results, which must have the same settings as fresh; without a file it returns fresh.
func open(path string, fresh Results) (*Results, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &fresh, nil
	}
	if err != nil {
		return nil, err
	}
	var old Results
	if err := json.Unmarshal(data, &old); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !reflect.DeepEqual(old.Settings, fresh.Settings) {
		return nil, fmt.Errorf("%s holds runs with other settings, %+v: choose another -out or the same settings", path, old.Settings)
	}
	return &old, nil
}

// save replaces the file as a whole.
func (r *Results) save(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
