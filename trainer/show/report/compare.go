package report

import (
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// related returns an error for runs that cannot be compared: runs of different tasks, because their rewards and accuracies
// have different meanings, and runs without a common agent.
func related(runs []*run) error {
	if len(runs) > maxRuns {
		return fmt.Errorf("%d runs are too many: at most %d can be compared", len(runs), maxRuns)
	}
	first := runs[0]
	for _, r := range runs[1:] {
		a, b := first.settings["task.kind"], r.settings["task.kind"]
		if a != b && a != "" && b != "" {
			return fmt.Errorf("%s and %s are runs of different tasks, %s and %s: their rewards and accuracies cannot be compared; make a report of each",
				first.dirs[0], r.dirs[0], a, b)
		}
		if !slices.ContainsFunc(r.agents, func(name string) bool { return slices.Contains(first.agents, name) }) {
			return fmt.Errorf("%s and %s have no agent in common (%s; %s): they are neither comparable runs nor parts of the same run; make a report of each",
				first.dirs[0], r.dirs[0], strings.Join(first.agents, ", "), strings.Join(r.agents, ", "))
		}
	}
	return nil
}

// comparison is the data of comparison.html.
type comparison struct {
	frame
	Runs       []namedClass
	Missing    []string
	Numbers    table
	Settings   table
	NoSettings string // reason why Settings has no rows
	Agents     []agentComparison
}

type agentComparison struct {
	Name  string
	Cards []card
}

// namedRuns holds runs with distinct names.
type namedRuns struct {
	runs  []*run
	names []string
}

func writeComparison(w io.Writer, runs []*run) error {
	c := namedRuns{runs, distinctNames(runs)}
	smoothed := slices.ContainsFunc(runs, (*run).smoothed)
	f, err := newFrame(strings.Join(c.names, " · "), struct{}{}, smoothed)
	if err != nil {
		return err
	}
	p := comparison{frame: f, Numbers: c.numbers(), Settings: c.settings(), NoSettings: "None."}
	for i, r := range runs {
		p.Runs = append(p.Runs, namedClass{c.names[i], c.class(i), r.subtitle()})
		for _, m := range r.missing {
			p.Missing = append(p.Missing, c.names[i]+": "+m)
		}
		if r.settings == nil {
			p.NoSettings = "Unknown: " + c.names[i] + " does not have a readable configuration."
		}
	}
	for _, name := range c.agents() {
		p.Agents = append(p.Agents, agentComparison{name, c.cards(name)})
	}
	return comparisonTemplate.Execute(w, p)
}

// distinctNames returns names for the runs: their own names or, if these are equal, names that include the folder's name or
// path.
func distinctNames(runs []*run) []string {
	var out []string
	for _, name := range []func(*run) string{
		func(r *run) string { return r.name },
		func(r *run) string { return r.name + " in " + filepath.Base(filepath.Clean(r.dirs[0])) },
		func(r *run) string { return r.name + " in " + r.dirs[0] },
	} {
		out = out[:0]
		distinct := map[string]bool{}
		for _, r := range runs {
			out = append(out, name(r))
			distinct[name(r)] = true
		}
		if len(distinct) == len(runs) {
			break
		}
	}
	return out
}

// class returns the CSS class of a run's colour.
func (namedRuns) class(i int) string { return fmt.Sprintf("c%d", i%8) }

// agents returns the agents of all runs, in the order of the first run that contains them.
func (c namedRuns) agents() []string {
	var out []string
	for _, r := range c.runs {
		for _, name := range r.agents {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// cards returns an agent's charts, with a curve for each run.
func (c namedRuns) cards(agent string) []card {
	last := int64(0)
	for _, r := range c.runs {
		last = max(last, r.lastStep())
	}
	overlay := func(title, note string, points func(*run) []point) chart {
		out := chart{Title: title, Note: note}
		for i, r := range c.runs {
			out.Curves = append(out.Curves, curve{Name: c.names[i], Class: c.class(i), points: points(r)})
		}
		return out
	}
	step := func(title, note, value string) chart {
		return overlay(title, note, func(r *run) []point { return r.series(metrics.KindStep, agent, value) })
	}
	heldOut := overlay("Held-out accuracy", heldOutNote, func(r *run) []point { return r.accuracies(agent) })
	expert := overlay("Held-out expert score", "dots are evaluations", func(r *run) []point { return r.series(metrics.KindEval, agent, metrics.ExpertMean) })
	for _, dotted := range []chart{heldOut, expert} {
		for i := range dotted.Curves {
			dotted.Curves[i].Dots = true
		}
	}
	loss := step("Loss", "what is minimised, mean over the step's updates", metrics.Loss)
	loss.free = true
	return cardsOver(last, []chart{
		heldOut, expert,
		step("Reward", "mean of the trajectories, before normalisation", metrics.RewardMean),
		step("Training accuracy", "verified answers", metrics.Accuracy),
		step("Expert score", "in training", metrics.ExpertMean),
		step("Valid format", "share of trajectories", metrics.FormatValid),
		step("Delegations d_k", "mean calls per rollout", metrics.CallsMean),
		step("Trajectory length", "mean tokens, read and written", metrics.TokensMean),
		step("Entropy", "nats per trained token", metrics.EntropyMean),
		step("KL, old to new", "k3 estimate, nats per token", metrics.ApproxKLK3),
		step("KL to the reference", "nats per token", metrics.RefKLMean),
		step("Gradient norm", "before clipping", metrics.GradNorm),
		step("Log-prob gap", "mean |trainer − sampler|, nats", metrics.GapMean),
		loss,
		step("Rollout", "seconds a step", metrics.RolloutSeconds),
		overlay("Learning", "seconds a step", func(r *run) []point {
			return r.computed(metrics.KindStep, agent, func(v map[string]float64) (float64, bool) {
				s := metrics.LearningTime(v)
				return s, s > 0
			})
		}),
		step("Rollout throughput", "sampled tokens per second", metrics.RolloutTokensPerSecond),
	})
}

// settings returns a table with a row for each configuration key that differs between runs.
func (c namedRuns) settings() table {
	t := table{Head: append([]string{"key"}, c.names...)}
	keys := map[string]bool{}
	for _, r := range c.runs {
		if r.settings == nil {
			return t
		}
		for key := range r.settings {
			keys[key] = true
		}
	}
	delete(keys, "run.name")
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		row, differs := []string{key}, false
		for _, r := range c.runs {
			value, known := r.settings[key]
			if !known {
				value = "–"
			}
			row = append(row, clip(credentials.ReplaceAllString(value, "://…@")))
			differs = differs || row[len(row)-1] != row[1]
		}
		if differs {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}
