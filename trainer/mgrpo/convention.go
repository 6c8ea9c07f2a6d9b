package mgrpo

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Std is the kind of standard deviation that divides an advantage.
type Std string

// Baseline is the value subtracted from a reward.
type Baseline string

const (
	StdPopulation Std = "population" // sqrt(sum w (r-mu)^2 / W)
	StdSample     Std = "sample"     // sqrt(sum w (r-mu)^2 / (W-1))
	StdNone       Std = "none"       // no division

	BaselineMean           Baseline = "mean"              // weighted mean of the group
	BaselineLeaveOneOut    Baseline = "leave_one_out"     // mean of the other members; needs std none
	BaselineLeaveOneOutStd Baseline = "leave_one_out_std" // mean and sample std of the other members, unit weights only
)

// Convention defines how a group's rewards are converted into advantages. A group is degenerate, with all advantages 0,
// if its rewards are equal or its population std is strictly below SigmaMin. Rewards count as equal if their range is
// at most 2^-40 of the largest magnitude.
type Convention struct {
	Std      Std      `json:"std"`
	Eps      float64  `json:"eps"` // added to the divisor
	Baseline Baseline `json:"baseline"`
	SigmaMin float64  `json:"sigma_min"`
}

// DefaultConvention returns M-GRPO's convention: population std, no epsilon, degenerate below 1e-6 (equations 10, 13).
func DefaultConvention() Convention {
	return Convention{Std: StdPopulation, Baseline: BaselineMean, SigmaMin: 1e-6}
}

var conventions = map[string]Convention{
	"mgrpo":    DefaultConvention(),
	"rllm":     {Std: StdPopulation, Eps: 1e-6, Baseline: BaselineMean},
	"trl":      {Std: StdSample, Eps: 1e-4, Baseline: BaselineMean},
	"areal":    {Std: StdSample, Eps: 1e-5, Baseline: BaselineMean},
	"verl":     {Std: StdSample, Eps: 1e-6, Baseline: BaselineMean},
	"skyrl":    {Std: StdSample, Eps: 1e-6, Baseline: BaselineMean},
	"slime":    {Std: StdSample, Eps: 1e-6, Baseline: BaselineMean},
	"roll":     {Std: StdSample, Eps: 1e-6, Baseline: BaselineMean},
	"openrlhf": {Std: StdSample, Eps: 1e-9, Baseline: BaselineMean},
	"marti":    {Std: StdSample, Eps: 1e-9, Baseline: BaselineMean},
	"dr_grpo":  {Std: StdNone, Baseline: BaselineMean},
	"prime_rl": {Std: StdNone, Baseline: BaselineMean},
	"rloo":     {Std: StdNone, Baseline: BaselineLeaveOneOut},
	"nemo_rl":  {Std: StdSample, Eps: 1e-6, Baseline: BaselineLeaveOneOutStd},
}

// ConventionByName returns the convention of a peer library, or the default for "mgrpo". For an unknown name it returns
// a *SettingError that lists the known names.
func ConventionByName(name string) (Convention, error) {
	c, ok := conventions[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(conventions)), ", ")
		return c, &SettingError{Key: "convention", Value: name, Reason: "must be one of " + known}
	}
	return c, nil
}

// Validate returns a *SettingError that names the first bad key.
func (c Convention) Validate() error {
	for _, f := range []struct {
		key   string
		value float64
	}{{"convention.eps", c.Eps}, {"convention.sigma_min", c.SigmaMin}} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			return &SettingError{Key: f.key, Value: f.value, Reason: "must be a finite number, 0 or more"}
		}
	}
	switch c.Std {
	case StdPopulation, StdSample, StdNone:
	default:
		return &SettingError{Key: "convention.std", Value: c.Std, Reason: "must be population, sample or none"}
	}
	needed := map[Baseline]Std{BaselineMean: c.Std, BaselineLeaveOneOut: StdNone, BaselineLeaveOneOutStd: StdSample}
	std, ok := needed[c.Baseline]
	if !ok {
		return &SettingError{Key: "convention.baseline", Value: c.Baseline, Reason: "must be mean, leave_one_out or leave_one_out_std"}
	}
	if std != c.Std {
		return &SettingError{Key: "convention.std", Value: c.Std, Reason: "must be " + string(std) + " with baseline " + string(c.Baseline)}
	}
	return nil
}

// SettingError is a setting with a bad value.
type SettingError struct {
	Key    string // path of the key in a configuration file
	Value  any
	Reason string
}

func (e *SettingError) Error() string { return fmt.Sprintf("%s: %v: %s", e.Key, e.Value, e.Reason) }
