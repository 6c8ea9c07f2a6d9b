package mgrpo

import (
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

func TestConventionsByName(t *testing.T) {
	var f struct{ Conventions map[string]Convention }
	golden.Read(t, "mgrpo", "peers.json", &f)
	for name, want := range f.Conventions {
		if got, err := ConventionByName(name); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	if _, err := ConventionByName("ppo"); err == nil {
		t.Error("an unknown convention is accepted")
	}
}

func TestConventionRefusals(t *testing.T) {
	for name, c := range conventions {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []Convention{
		{Std: "mean", Baseline: BaselineMean}, {Std: StdSample, Baseline: BaselineLeaveOneOut},
		{Std: StdNone, Baseline: "median"}, {Std: StdNone, Baseline: BaselineMean, Eps: -1},
		{Std: StdPopulation, Baseline: BaselineMean, SigmaMin: math.NaN()},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
