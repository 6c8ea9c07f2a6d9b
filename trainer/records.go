package trainer

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// report reports a record if the place still belongs to this worker. Readers take a record of an earlier step than the
// one before as a sign that the run went back.
func (w *worker) report(ctx context.Context, r metrics.Record) error {
	if err := w.member.ConfirmPlace(ctx); err != nil {
		return err
	}
	w.observer.Report(r)
	return nil
}

// stepRecord returns the record of one step of this agent. docs/metrics.md defines the names.
func (w *worker) stepRecord(n int64, held *experience, outcomes []store.Outcome, complete map[string][]store.Outcome,
	groups []mgrpo.Group, advantages learner.Advantages, l learned, clock *stopwatch) metrics.Record {
	r := metrics.Record{Kind: metrics.KindStep, Step: n + 1, Agent: w.name, Values: map[string]float64{}}
	w.describeRollouts(&r, held, slices.Concat(outcomes, held.replaced), clock)
	r.Values["queries_replaced"] = float64(len(held.plan.Replaced))
	kept := 0
	for _, o := range complete {
		kept += len(o)
	}
	r.Values["rollouts_removed"] = float64(len(outcomes) - kept)
	totals := mgrpo.Count(advantages.Groups)
	r.Values["trajectories_stale"] = float64(held.stale)
	var lag mean
	for _, t := range held.trajectories {
		lag.add(float64(n - t.Version))
		r.Values["lag_max"] = max(r.Values["lag_max"], float64(n-t.Version))
	}
	lag.into(r.Values, "lag_mean")
	r.Values["groups"] = float64(totals.Groups)
	r.Values["groups_degenerate"] = float64(totals.Degenerate)
	r.Values["groups_empty"] = float64(totals.Empty)
	if s := advantages.GPUSeconds; s != nil {
		r.Values["advantage_gpu_seconds"] = *s
	}
	r.Values["groups_on_"+advantages.Backend] = float64(len(advantages.Groups))
	rewards := mean{}
	for _, g := range groups {
		for _, m := range g.Members {
			rewards.add(m.Reward)
		}
	}
	rewards.into(r.Values, "reward_mean")
	describeLearning(&r, l)
	if s := clock.laps["learn"]; s > 0 && r.Values["trained_tokens"] > 0 {
		r.Values["learn_seconds"] = s
		r.Values["learn_tokens_per_second"] = r.Values["trained_tokens"] / s
	}
	w.archive.Describe(r.Values)
	w.describeMemory(&r)
	return r
}

// evalRecord returns the record of an evaluation; own are the outcomes by which versions are compared.
func (w *worker) evalRecord(version int64, held *experience, outcomes, own []store.Outcome, clock *stopwatch) metrics.Record {
	r := metrics.Record{Kind: metrics.KindEval, Step: version, Agent: w.name, Values: map[string]float64{}}
	w.describeRollouts(&r, held, outcomes, clock)
	if !w.main {
		if why := held.unscored.first(); why != "" { // the rest is not a fair sample
			delete(r.Values, "expert_mean")
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicVerifier, "evaluation %d: expert score unknown: %d calls have no score: %s", version, len(held.unscored.reasons), why))
		}
		return r
	}
	if r.Unknown = unknownAccuracy(outcomes); r.Unknown != "" {
		delete(r.Values, "accuracy")
	} else {
		r.Values["accuracy"] = accuracy(own)
		describePassAtK(&r, own, held.plan.Rollouts)
	}
	return r
}

// describeRollouts adds figures on the conversations of a phase for this agent.
func (w *worker) describeRollouts(r *metrics.Record, held *experience, outcomes []store.Outcome, clock *stopwatch) {
	var format, turns, tokens, sampled, malformed, expert, correct mean
	counted := true
	for _, id := range slices.Sorted(maps.Keys(held.trajectories)) { // in a fixed order, so that sums of scores are equal in each run
		t := held.trajectories[id]
		format.addBool(t.FormatValid)
		turns.add(float64(len(t.Said())))
		n, own, known := t.Size()
		tokens.add(float64(n))
		sampled.add(float64(own))
		counted = counted && known
		r.Values["rows_rewritten"] += float64(len(t.More))
		malformed.add(float64(t.Malformed))
		if !w.main && !t.unjudged {
			expert.add(orZero(t.expert))
		}
	}
	for _, o := range outcomes {
		if o.Failed == "" {
			correct.add(o.Correct)
		}
		r.Values["rollouts_failed"] += b2f(o.Failed != "")
	}
	format.into(r.Values, "format_valid")
	turns.into(r.Values, "turns_mean")
	malformed.into(r.Values, "malformed_mean")
	expert.into(r.Values, "expert_mean")
	if w.main {
		correct.into(r.Values, "accuracy")
	}
	r.Values["trajectories"] = float64(len(held.trajectories))
	for _, t := range held.trajectories {
		r.Values["prompts_too_long"] += b2f(promptTooLong(t.Trajectory))
	}
	seconds := clock.laps["rollout"]
	if seconds > 0 {
		r.Values["rollout_seconds"] = seconds
	}
	if counted {
		tokens.into(r.Values, "tokens_mean")
		r.Values["tokens"], r.Values["sampled_tokens"] = tokens.sum, sampled.sum
	}
	if counted && seconds > 0 {
		r.Values["rollout_tokens_per_second"] = sampled.sum / seconds
	}
	r.Counts = map[string]map[string]int64{}
	w.describeCalls(r, outcomes)
	w.describeBatches(r)
	w.describeTools(r)
}

// describeCalls adds the distribution of d_k: of all calls for the main agent, of its own calls for a sub-agent.
func (w *worker) describeCalls(r *metrics.Record, outcomes []store.Outcome) {
	calls, histogram, ofQuery := mean{}, map[string]int64{}, map[string][]int{}
	for _, o := range outcomes {
		d := o.Calls[w.name]
		if w.main {
			d = 0
			for _, c := range o.Calls {
				d += c
			}
		}
		calls.add(float64(d))
		histogram[strconv.Itoa(d)]++
		ofQuery[o.Query] = append(ofQuery[o.Query], d)
	}
	calls.into(r.Values, "calls_mean")
	if std, ok := SpreadWithin(ofQuery); ok {
		r.Values["calls_std"] = std
	}
	r.Counts["calls"] = histogram
}

// SpreadWithin returns the standard deviation within groups: the root of the mean of their unbiased variances. Groups
// of one have no variance and are left out; known is false if there are no others.
func SpreadWithin(groups map[string][]int) (std float64, known bool) {
	var variance mean
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		values := groups[name]
		n, sum, squares := len(values), 0, 0
		for _, v := range values {
			sum += v
			squares += v * v
		}
		if n > 1 {
			variance.add(float64(n*squares-sum*sum) / float64(n*(n-1)))
		}
	}
	return math.Sqrt(variance.value()), variance.n > 0
}

// describeBatches adds the number of sequences decoded together in the engine's passes since the last record, and where
// they were sampled.
func (w *worker) describeBatches(r *metrics.Record) {
	s, before := w.Policy.Stats(), w.sampled
	w.sampled = s
	histogram := map[string]int64{}
	for size, passes := range s.Batches {
		if n := passes - before.Batches[size]; n > 0 {
			histogram[strconv.Itoa(size)] = n
		}
	}
	r.Counts["decode_batch"] = histogram
	if len(s.Ranks) > 0 {
		byRank := map[string]int64{}
		for rank, n := range s.Ranks {
			if before.Ranks != nil {
				n -= before.Ranks[rank]
			}
			byRank[strconv.Itoa(rank)] = n
		}
		r.Counts["rank_tokens"] = byRank
	}
	r.Values["in_flight_max"] = float64(s.MaxInFlight)
	r.Values["evicted_tokens"] = float64(s.EvictedTokens)
	r.Values["recomputed_tokens"] = float64(s.Recomputed)
}

// describePassAtK adds figures of an evaluation in which every rollout has a score: queries by their number of right
// samples, the share of queries with at least one, and the spread of accuracy over the samples.
func describePassAtK(r *metrics.Record, outcomes []store.Outcome, samples int) {
	right := map[string]int{}
	runs := make([]mean, samples)
	for _, o := range outcomes {
		right[o.Query] += int(b2f(o.Correct >= 1))
		if o.Rollout < samples {
			runs[o.Rollout].add(o.Correct)
		}
	}
	solved, histogram := mean{}, map[string]int64{}
	for _, n := range right {
		solved.addBool(n > 0)
		histogram[strconv.Itoa(n)]++
	}
	solved.into(r.Values, "pass_at_"+strconv.Itoa(samples))
	r.Counts["right_samples"] = histogram
	var all mean
	for _, run := range runs {
		if run.n > 0 {
			all.add(run.value())
		}
	}
	if all.n > 1 {
		squares := 0.0
		for _, run := range runs {
			if run.n > 0 {
				squares += (run.value() - all.value()) * (run.value() - all.value())
			}
		}
		r.Values["accuracy_std"] = math.Sqrt(squares / float64(all.n-1))
	}
}

// describeLearning merges the updates of a step: means, the smallest minimum, the largest maximum. The gap between
// sampler and trainer is that of the first update only, before which both have the same weights.
func describeLearning(r *metrics.Record, l learned) {
	merged := map[string][]float64{}
	for _, u := range l.reports {
		r.Values["updates_skipped"] += b2f(u.Skipped)
		r.Values["updates_failed"] += b2f(u.Refused != nil)
		for name, v := range u.Values {
			merged[name] = append(merged[name], v)
		}
	}
	for name, values := range merged {
		switch {
		case name == "gap_mean":
			r.Values[name] = values[0]
		case strings.HasSuffix(name, "_min"):
			r.Values[name] = slices.Min(values)
		case strings.HasSuffix(name, "_max"):
			r.Values[name] = slices.Max(values)
		default:
			var m mean
			for _, v := range values {
				m.add(v)
			}
			r.Values[name] = m.value()
		}
	}
	r.Values["updates"] = float64(len(l.reports))
	if len(l.reports) > 0 {
		maps.DeleteFunc(r.Values, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
		r.Values["trained_tokens"] = 0
		for _, u := range l.reports {
			r.Values["trained_tokens"] += u.Values["batch_tokens"]
		}
	}
}

func (w *worker) describeMemory(r *metrics.Record) {
	if w.Device == nil {
		return // a hosted model
	}
	m, err := w.Device.Memory(context.Background())
	if err != nil {
		return // an unknown figure is left out
	}
	r.Values["memory_bytes"], r.Values["memory_peak_bytes"] = float64(m.Allocated), float64(m.Peak)
	if !w.Device.IsCUDA() {
		return
	}
	if gpu, err := cuda.MemoryOf(w.Device.Index()); err == nil {
		r.Values["gpu_memory_used_bytes"] = float64(gpu.Total - gpu.Free)
	}
}

// accuracy returns the main agent's accuracy in an evaluation, or NaN if any rollout has no score.
func accuracy(outcomes []store.Outcome) float64 {
	if unknownAccuracy(outcomes) != "" {
		return math.NaN()
	}
	var correct mean
	for _, o := range outcomes {
		correct.add(o.Correct)
	}
	return correct.value()
}

// mean accumulates an average.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) { m.sum += v; m.n++ }

func (m *mean) addBool(b bool) { m.add(b2f(b)) }

func (m *mean) value() float64 { return m.sum / float64(m.n) }

// into sets a value, unless it is unknown.
func (m *mean) into(values map[string]float64, name string) {
	if m.n > 0 {
		values[name] = m.value()
	}
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func orZero(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}
