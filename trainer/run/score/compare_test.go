package score

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// The interval of a paired difference contains the true difference. It is narrower than the
// intervals of the two accuracies if questions vary widely in difficulty.
func TestCompare(t *testing.T) {
	const questions, runs, gain = 200, 100, 0.1
	rng := rand.New(rand.NewPCG(1, 2))
	held := 0
	for seed := range uint64(runs) {
		var before, after []Answers
		for i := range questions {
			// Hard questions score 0 to 0.2, easy ones 0.8 to 1; this spread must not widen the interval of the difference.
			hard := float64(i%2) * 0.8
			id := strconv.Itoa(i)
			before = append(before, Answers{"", id, "", []float64{hard + 0.1*rng.Float64()}})
			after = append([]Answers{{"", id, "", []float64{hard + gain + 0.1*rng.Float64()}}}, after...)
		}
		d, err := Compare(before, after, seed)
		if err != nil || d.Questions != questions || !(d.Interval[0] < d.Mean && d.Mean < d.Interval[1]) {
			t.Fatalf("%+v, %v", d, err)
		}
		// The difference of two uniform numbers of width 0.1 has the deviation 0.1 / sqrt(6): 95 % lie within 0.0057 of the mean of 200.
		if width := (d.Interval[1] - d.Interval[0]) / 2; math.Abs(width-0.0057) > 0.001 {
			t.Errorf("an interval of %v around the mean", width)
		}
		if d.Interval[0] <= gain && gain <= d.Interval[1] {
			held++
		}
	}
	if held < 87 || held == runs { // 95 are expected; the bounds are three and a half standard deviations away
		t.Errorf("%d of %d intervals hold the true difference", held, runs)
	}
}

func TestCompareRefuses(t *testing.T) {
	one := func(set, id string, scores ...float64) Answers { return Answers{set, id, "d", scores} }
	for name, c := range map[string]struct {
		before, after []Answers
		want          string
	}{
		"nothing":            {nil, nil, "cannot be compared"},
		"fewer":              {[]Answers{one("", "a", 1)}, []Answers{one("", "a", 1), one("", "b", 1)}, "cannot be compared"},
		"others":             {[]Answers{one("", "a", 1)}, []Answers{one("", "b", 1)}, `"b"`},
		"another set":        {[]Answers{one("x", "a", 1)}, []Answers{one("y", "a", 1)}, `"a"`},
		"another question":   {[]Answers{one("", "a", 1)}, []Answers{{"", "a", "e", []float64{1}}}, `"a" is not the same`},
		"one twice before":   {[]Answers{one("", "a", 1), one("", "a", 1)}, []Answers{one("", "a", 1), one("", "b", 1)}, "twice"},
		"one twice after":    {[]Answers{one("", "a", 1), one("", "b", 1)}, []Answers{one("", "a", 1), one("", "a", 1)}, "twice"},
		"no answer":          {[]Answers{one("", "a")}, []Answers{one("", "a", 1)}, "mean score"},
		"no score from 0 on": {[]Answers{one("", "a", 1)}, []Answers{one("", "a", -1)}, "mean score"},
	} {
		if _, err := Compare(c.before, c.after, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
