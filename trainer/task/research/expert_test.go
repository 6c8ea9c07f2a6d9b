package research

import (
	"math"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// accuracy plays n queries with one noise for each part.
func accuracy(t *testing.T, n int, planner, researcher Noise) float64 {
	t.Helper()
	right := 0
	for i := range n {
		kb := makeKB(defaultShape(), task.NewStream(7, "test", int64(i)))
		p := &expert{kb: &kb, noise: planner, s: task.NewStream(7, "planner", int64(i))}
		r := &expert{kb: &kb, noise: researcher, s: task.NewStream(7, "researcher", int64(i))}
		answer := p.plan(func(entity, relation string) (string, bool) {
			return lastName(r.research(entity, relation, 3, kb.Search)), true
		})
		if answer == kb.Answer() {
			right++
		}
	}
	return float64(right) / float64(n)
}

// The published accuracies are means over an unknown number of queries. 4000 queries here give a standard error of
// 0.008; the bounds are three standard errors plus the rounding of the figures.
func TestScriptedAccuracy(t *testing.T) {
	sloppy, clean := sloppyNoise(), Noise{}
	careful, insistent := Noise{AskAgain: sloppy.AskAgain}, Noise{AskAgain: 1}
	const queries = 4000
	for _, c := range []struct {
		name                string
		planner, researcher Noise
		want                float64
	}{
		{"sloppy pair", sloppy, sloppy, 0.42},
		{"clean planner, sloppy researcher", careful, sloppy, 0.45},
		{"planner that always asks again, sloppy researcher", insistent, sloppy, 0.50},
		{"clean pair", careful, clean, 1},
	} {
		got := accuracy(t, queries, c.planner, c.researcher)
		t.Logf("%s: %.3f (published %.2f)", c.name, got, c.want)
		tolerance := 3*math.Sqrt(c.want*(1-c.want)/queries) + 0.005
		if math.Abs(got-c.want) > tolerance {
			t.Errorf("%s: accuracy %.3f, want %.2f +- %.3f", c.name, got, c.want, tolerance)
		}
	}
}

func TestDemonstrationLengths(t *testing.T) {
	r, err := New(quickstart(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		role    Role
		mean    float64
		max     int // published longest; the grammar's limits allow no more than a few tokens beyond
		perTask float64
	}{{Planner, 21.5, 43, 1}, {Researcher, 31.3, 71, 2.03}, {Single, 65.8, 199, 1}} {
		const queries = 3072
		count, tokens, longest := 0, 0, 0
		for d := range r.Demonstrations(agentRole(c.role), queries) {
			n := 0
			for _, s := range d.Segments {
				n += len(strings.Fields(s.Text))
			}
			count, tokens, longest = count+1, tokens+n, max(longest, n)
		}
		mean, perTask := float64(tokens)/float64(count), float64(count)/queries
		t.Logf("%s: %d demonstrations, mean %.1f tokens (published %.1f), longest %d (published %d)", c.role, count, mean, c.mean, longest, c.max)
		if math.Abs(mean-c.mean) > 0.05*c.mean || math.Abs(perTask-c.perTask) > 0.1 || longest > c.max+c.max/5 {
			t.Errorf("%s: mean %.1f tokens, longest %d, %.2f a query; want about %.1f, %d, %.2f", c.role, mean, longest, perTask, c.mean, c.max, c.perTask)
		}
	}
}
