package report

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// charts makes the charts of a run's page, with a curve, a heatmap or bars for each agent.
type charts struct{ run *run }

// perAgent returns a curve for each agent.
func (c charts) perAgent(kind, value string) []curve {
	var out []curve
	for _, name := range c.run.agents {
		out = append(out, curve{Name: name, Class: c.run.class(name), points: c.run.series(kind, name, value)})
	}
	return out
}

// stepChart returns a chart of a value of the steps.
func (c charts) stepChart(title, note, value string) chart {
	return chart{Title: title, Note: note, Curves: c.perAgent(metrics.KindStep, value)}
}

// heldOutNote is the subtitle of charts of accuracies.
const heldOutNote = "bars: ± standard deviation over samples"

// outcome returns the charts of rewards, accuracies and trajectories.
func (c charts) outcome() []chart {
	heldOut := chart{Title: "Held-out accuracy", Note: heldOutNote}
	for _, name := range c.run.agents {
		heldOut.Curves = append(heldOut.Curves, curve{Name: name, Class: c.run.class(name), Dots: true, points: c.run.accuracies(name)})
	}
	for _, expert := range c.perAgent(metrics.KindEval, metrics.ExpertMean) {
		expert.Dots, expert.Style, expert.Name = true, "dashed", expert.Name+" (expert)"
		heldOut.Curves = append(heldOut.Curves, expert)
	}
	train := c.stepChart("Training accuracy", "main: verified answers; sub-agents: expert score", metrics.Accuracy)
	train.Curves = append(train.Curves, c.perAgent(metrics.KindStep, metrics.ExpertMean)...)
	return []chart{
		c.stepChart("Reward", "mean of the trajectories, before normalisation", metrics.RewardMean),
		heldOut, train,
		{Title: "Valid format", Note: "share of trajectories", free: true, share: true, Curves: c.perAgent(metrics.KindStep, metrics.FormatValid)},
		c.stepChart("Trajectory length", "mean tokens, read and written", metrics.TokensMean),
	}
}

func (c charts) learning() []chart {
	clip := c.stepChart("Clipped tokens", "share; solid: above, dashed: below the trust region", metrics.ClipFracHigh)
	for _, below := range c.perAgent(metrics.KindStep, metrics.ClipFracLow) {
		below.Style, below.Name = "dashed", below.Name+" (below)"
		clip.Curves = append(clip.Curves, below)
	}
	loss := c.stepChart("Loss", "what is minimised, mean over the step's updates", metrics.Loss)
	loss.free = true
	return []chart{
		c.stepChart("Entropy", "nats per trained token", metrics.EntropyMean),
		c.stepChart("KL, old to new", "k3 estimate, nats per token", metrics.ApproxKLK3),
		c.stepChart("KL to the reference", "nats per token", metrics.RefKLMean),
		clip,
		c.stepChart("Gradient norm", "before clipping", metrics.GradNorm),
		c.stepChart("Log-prob gap", "mean |trainer − sampler|, nats", metrics.GapMean),
		loss,
		c.stepChart("Degenerate groups", "groups whose rewards are all equal", metrics.GroupsDegenerate),
	}
}

func (c charts) costs() []chart {
	seconds := c.stepChart("Seconds a step", "solid: rollout, dashed: learning", metrics.RolloutSeconds)
	memory := chart{Title: "Memory", Note: "MiB of tensors, highest so far"}
	for _, name := range c.run.agents {
		seconds.Curves = append(seconds.Curves, curve{Name: name + " (learning)", Class: c.run.class(name), Style: "dashed",
			points: c.run.computed(metrics.KindStep, name, func(v map[string]float64) (float64, bool) {
				s := metrics.LearningTime(v)
				return s, s > 0
			})})
		memory.Curves = append(memory.Curves, curve{Name: name, Class: c.run.class(name),
			points: c.run.computed(metrics.KindStep, name, func(v map[string]float64) (float64, bool) {
				b, ok := v[metrics.MemoryPeakBytes]
				return b / (1 << 20), ok
			})})
	}
	return []chart{
		seconds,
		c.stepChart("Rollout throughput", "sampled tokens per second", metrics.RolloutTokensPerSecond),
		c.stepChart("Learning throughput", "trained tokens per second", metrics.LearnTokensPerSecond),
		memory,
	}
}

// cards draws the charts that have points, all over the same steps.
func (c charts) cards(charts []chart) []card { return cardsOver(c.run.lastStep(), charts) }

func cardsOver(lastStep int64, charts []chart) []card {
	from, to := 0.0, math.Max(float64(lastStep), 1)
	var out []card
	for _, c := range charts {
		drawn := c.drawn()
		if len(drawn) == 0 {
			continue
		}
		x := card{Title: c.Title, Note: c.Note, SVG: c.svg(from, to)}
		for _, v := range drawn {
			x.Legend = append(x.Legend, legend{v.Name, v.Class, v.Style, formatShort(v.points[len(v.points)-1].y)})
		}
		out = append(out, x)
	}
	return out
}

// calls returns the heatmaps of d_k, the number of calls in a rollout: one for all calls of the main agent and, if there are
// several sub-agents, one for the calls to each.
func (c charts) calls() []card {
	var out []card
	subs := len(c.run.agents) - 1
	for _, name := range c.run.agents {
		h := c.callsOf(name)
		h.Class = c.run.class(name)
		h.Title, h.Note = "Calls to "+name, "share of rollouts with d calls, by step"
		if name == c.run.main {
			h.Title = "Delegations d_k"
		} else if subs == 1 && len(c.callsOf(c.run.main).steps) > 0 {
			continue // equal to the main agent's heatmap
		}
		if len(h.steps) > 0 {
			out = append(out, card{Title: h.Title, Note: h.Note, SVG: h.svg()})
		}
	}
	return out
}

const maxBatch = 1 << 16 // sequences

// batches returns a chart for each agent of the number of sequences that its engine decoded at once.
func (c charts) batches() []card {
	var out []card
	for _, name := range c.run.agents {
		total := map[int64]int64{}
		for _, l := range c.run.records {
			_, counts := metrics.Integers(l.Counts[metrics.DecodeBatch])
			if l.Agent == name {
				for k, n := range counts {
					if 0 < k && k <= maxBatch { // 0: passes of prompts only
						total[k] += n
					}
				}
			}
		}
		if len(total) > 0 {
			out = append(out, card{Title: "Decode batches of " + name, Note: "forward passes by the number of conversations in them",
				SVG: histogram(total, c.run.class(name), name), Explained: explainBatches(total)})
		}
	}
	return out
}
