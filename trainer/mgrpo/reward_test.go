package mgrpo

import (
	"errors"
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

type rewardInput struct {
	Format      bool
	Correct     *Number
	MainFormat  bool    `json:"main_format"`
	MainCorrect *Number `json:"main_correct"`
	Expert      *Number
	Reward      float64
}

func (in rewardInput) score(kind string) (float64, error) {
	w := RewardWeights{Main: MainWeights{Format: 0.1, Correct: 0.9}, Sub: SubWeights{Format: 0.1, Main: 0.4, Expert: 0.5}}
	if kind == "main" {
		return w.MainReward(in.Format, (*float64)(in.Correct))
	}
	return w.SubReward(in.Format, in.MainFormat, (*float64)(in.MainCorrect), (*float64)(in.Expert))
}

func TestRewardGolden(t *testing.T) {
	var f struct {
		Main, Sub []rewardInput
		Errors    []struct {
			Name, Kind string
			Input      rewardInput
			Error      Refusal
		}
	}
	golden.Read(t, "mgrpo", "rewards.json", &f)
	for kind, cases := range map[string][]rewardInput{"main": f.Main, "sub": f.Sub} {
		for _, c := range cases {
			got, err := c.score(kind)
			if err != nil {
				t.Errorf("%s %+v: %v", kind, c, err)
			}
			golden.Near(t, kind+" reward", got, c.Reward, 1e-14)
		}
	}
	for _, c := range f.Errors {
		_, err := c.Input.score(c.Kind)
		golden.SameError(t, c.Name, err, c.Error)
	}
	golden.Count("mgrpo/rewards", len(f.Main)+len(f.Sub)+len(f.Errors))
}

func TestRewardWeights(t *testing.T) {
	w := RewardWeights{Main: MainWeights{Format: 0.2, Correct: 0.8}, Sub: SubWeights{Format: 0.25, Main: 0.25, Expert: 0.5}}
	if r, err := w.MainReward(true, new(0.5)); err != nil || math.Abs(r-0.6) > 1e-15 {
		t.Errorf("main: %v, %v", r, err)
	}
	if r, err := w.SubReward(true, false, nil, new(1.0)); err != nil || r != 0.75 {
		t.Errorf("sub without a main answer: %v, %v", r, err)
	}
}

// TestRemovalReward: the credit is the correctness minus the correctness without the call, and may be negative. An invalid main format
// has no credit, and an invalid format of the sub-agent has reward 0.
func TestRemovalReward(t *testing.T) {
	w := RewardWeights{Sub: SubWeights{Format: 0.1, Main: 0.4, Expert: 0.5}}
	half, one, zero := new(0.5), new(1.0), new(0.0)
	for _, c := range []struct {
		format, main             bool
		correct, without, expert *float64
		want                     float64
	}{
		{true, true, one, zero, half, 0.75}, {true, true, one, one, half, 0.35}, {true, true, zero, one, half, -0.05},
		{true, true, half, new(0.25), one, 0.7}, {true, false, zero, nil, one, 0.6}, {false, true, one, zero, nil, 0},
	} {
		got, err := w.RemovalReward(c.format, c.main, c.correct, c.without, c.expert)
		if err != nil || math.Abs(got-c.want) > 1e-15 {
			t.Errorf("%+v: got %v, %v", c, got, err)
		}
	}
	for want, without := range map[Code]*float64{MissingReward: nil, NonFiniteReward: new(math.NaN()), RewardOutOfRange: new(1.5)} {
		_, err := w.RemovalReward(true, true, one, without, one)
		if refused, ok := errors.AsType[*Refusal](err); !ok || refused.Code != want || refused.Field != "without" {
			t.Errorf("got %v, want %s of without", err, want)
		}
	}
}
