package worker

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// reports makes an agent's records, and warns of what they show.
type reports struct {
	*common
	player        *play.Player
	policy        policy.Lifecycle
	device        *torch.Device // nil: the agent's model is hosted
	archive       *archive.Archive
	heldOutDigest string       // digest of the questions by which versions are compared, and of the settings of evaluations
	lastStats     policy.Stats // the engine's statistics at the last record
	tally         tally        // of this round's steps
}

// step returns the record of one step of this agent. docs/metrics.md defines the names.
func (rp *reports) step(s stepResult) metrics.Record {
	r := metrics.Record{Kind: metrics.KindStep, Step: s.step + 1, Agent: rp.name, Values: map[string]float64{}}
	rp.describeRollouts(&r, s.exp, slices.Concat(s.outcomes, s.exp.replaced), s.exp.clock)
	r.Values[metrics.QueriesReplaced] = float64(len(s.exp.plan.Replaced))
	kept := 0
	for _, o := range s.complete {
		kept += len(o)
	}
	r.Values[metrics.RolloutsRemoved] = float64(len(s.outcomes) - kept)
	totals := mgrpo.CountGroups(s.advantages.Groups)
	r.Values[metrics.TrajectoriesStale] = float64(s.exp.stale)
	var lag score.Mean
	for _, t := range s.exp.trajectories {
		lag.Add(float64(s.step - t.conversation.Version))
		r.Values[metrics.LagMax] = max(r.Values[metrics.LagMax], float64(s.step-t.conversation.Version))
	}
	lag.Into(r.Values, metrics.LagMean)
	r.Values[metrics.Groups] = float64(totals.Groups)
	r.Values[metrics.GroupsDegenerate] = float64(totals.Degenerate)
	r.Values[metrics.GroupsEmpty] = float64(totals.Empty)
	if seconds := s.advantages.GPUSeconds; seconds != nil {
		r.Values[metrics.AdvantageGPUSeconds] = *seconds
	}
	r.Values[metrics.GroupsOnPrefix+s.advantages.Backend] = float64(len(s.advantages.Groups))
	rewards := score.Mean{}
	for _, g := range s.groups {
		for _, m := range g.Members {
			rewards.Add(m.Reward)
		}
	}
	rewards.Into(r.Values, metrics.RewardMean)
	rp.describeCredit(&r, s.exp, s.complete)
	describeLearning(&r, s.updates)
	r.Values[metrics.AgreeSeconds] = s.exp.clock.laps["agree"]
	if seconds := s.exp.clock.laps["learn"]; seconds > 0 && r.Values[metrics.TrainedTokens] > 0 {
		r.Values[metrics.LearnSeconds] = seconds
		r.Values[metrics.LearnTokensPerSecond] = r.Values[metrics.TrainedTokens] / seconds
	}
	rp.archive.Saving.Describe(r.Values)
	rp.describeMemory(&r)
	return r
}

// describeCredit adds the mean removal credit of calls for a sub-agent, and the cost of credits for the main agent.
func (rp *reports) describeCredit(r *metrics.Record, exp *experience, complete map[string][]store.Outcome) {
	if rp.cfg.GRPO.Credit != mgrpo.RemovalCredit {
		return
	}
	if rp.main {
		r.Values[metrics.RemovalTokens] = 0
		for _, t := range exp.trajectories {
			r.Values[metrics.RemovalTokens] += float64(t.removalTokens)
		}
		return
	}
	var credit score.Mean
	for _, query := range slices.Sorted(maps.Keys(complete)) { // in a fixed order, so that the sum is equal in each run
		for _, o := range complete[query] {
			for _, without := range o.Without[rp.name] {
				credit.Add(o.Correct - without)
			}
		}
	}
	credit.Into(r.Values, metrics.CreditMean)
}

// evaluation returns the record of an evaluation. `own` holds the outcomes by which versions are compared.
func (rp *reports) evaluation(version int64, exp *experience, outcomes, own []store.Outcome, clock *stopwatch) metrics.Record {
	r := metrics.Record{Kind: metrics.KindEval, Step: version, Agent: rp.name, Values: map[string]float64{}}
	rp.describeRollouts(&r, exp, outcomes, clock)
	if !rp.main {
		if why := exp.unscored.first(); why != "" { // the rest is not a fair sample
			delete(r.Values, metrics.ExpertMean)
			rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicVerifier,
				"evaluation %d: expert score unknown: %d calls have no score: %s", version, len(exp.unscored.reasons), why))
		}
		return r
	}
	r.HeldOutDigest = rp.heldOutDigest
	if r.Unknown = unknownAccuracy(own); r.Unknown != "" {
		delete(r.Values, metrics.Accuracy)
	} else {
		r.Values[metrics.Accuracy] = accuracy(own)
		describePassAtK(&r, own, exp.plan.Rollouts)
	}
	return r
}

// scored returns the questions of the sets in which every rollout has a score. It reports the other sets.
func (rp *reports) scored(version int64, questions []score.AnsweredQuery, sets map[string][]store.Outcome) []score.AnsweredQuery {
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		why := unknownAccuracy(sets[set])
		if why == "" {
			continue
		}
		rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicVerifier, "evaluation %d: set %s: %s", version, set, why))
		questions = slices.DeleteFunc(slices.Clone(questions), func(q score.AnsweredQuery) bool { return q.Query.Set == set })
	}
	return questions
}

// describeRollouts adds figures about the conversations of a phase for this agent.
func (rp *reports) describeRollouts(r *metrics.Record, exp *experience, outcomes []store.Outcome, clock *stopwatch) {
	var format, turns, tokens, sampled, malformed, expert, correct score.Mean
	counted := true
	for _, id := range slices.Sorted(maps.Keys(exp.trajectories)) { // in a fixed order, so that sums of scores are equal in each run
		t := exp.trajectories[id]
		format.AddBool(t.conversation.FormatValid)
		turns.Add(float64(len(t.conversation.AllTurns())))
		n, own, known := t.conversation.Size()
		tokens.Add(float64(n))
		sampled.Add(float64(own))
		counted = counted && known
		r.Values[metrics.RowsRewritten] += float64(len(t.conversation.More))
		r.Values[metrics.PromptsTooLong] += score.Indicator(promptTooLong(t.conversation))
		malformed.Add(float64(t.conversation.Malformed))
		if !rp.main && !t.unjudged {
			scored := 0.0
			if t.expert != nil {
				scored = *t.expert
			}
			expert.Add(scored)
		}
	}
	for _, o := range outcomes {
		if o.Failed == "" {
			correct.Add(o.Correct)
		}
		r.Values[metrics.RolloutsFailed] += score.Indicator(o.Failed != "")
	}
	format.Into(r.Values, metrics.FormatValid)
	turns.Into(r.Values, metrics.TurnsMean)
	malformed.Into(r.Values, metrics.MalformedMean)
	expert.Into(r.Values, metrics.ExpertMean)
	if rp.main {
		correct.Into(r.Values, metrics.Accuracy)
	}
	r.Values[metrics.Trajectories] = float64(len(exp.trajectories))
	seconds := clock.laps["rollout"]
	if seconds > 0 {
		r.Values[metrics.RolloutSeconds] = seconds
	}
	if counted {
		tokens.Into(r.Values, metrics.TokensMean)
		r.Values[metrics.Tokens], r.Values[metrics.SampledTokens] = tokens.Sum(), sampled.Sum()
	}
	if counted && seconds > 0 {
		r.Values[metrics.RolloutTokensPerSecond] = sampled.Sum() / seconds
	}
	r.Counts = map[string]map[string]int64{}
	rp.describeCalls(r, outcomes)
	rp.describeBatches(r)
	rp.describeTools(r)
}

// describeCalls adds the distribution of d_k, the number of calls in a rollout. For the main agent these are all its calls, and
// for a sub-agent the calls to it.
func (rp *reports) describeCalls(r *metrics.Record, outcomes []store.Outcome) {
	calls, histogram, ofQuery := score.Mean{}, map[string]int64{}, map[string][]int{}
	for _, o := range outcomes {
		d := o.Calls[rp.name]
		if rp.main {
			d = 0
			for _, c := range o.Calls {
				d += c
			}
		}
		calls.Add(float64(d))
		histogram[strconv.Itoa(d)]++
		ofQuery[o.Query] = append(ofQuery[o.Query], d)
	}
	calls.Into(r.Values, metrics.CallsMean)
	if std, ok := score.SpreadWithin(ofQuery); ok {
		r.Values[metrics.CallsStd] = std
	}
	r.Counts[metrics.Calls] = histogram
}

// describeBatches adds the number of sequences decoded together in the engine's passes since the last record, and the ranks
// on which tokens were sampled.
func (rp *reports) describeBatches(r *metrics.Record) {
	s, before := rp.policy.Stats(), rp.lastStats
	rp.lastStats = s
	histogram := map[string]int64{}
	for size, passes := range s.Batches {
		if n := passes - before.Batches[size]; n > 0 {
			histogram[strconv.Itoa(size)] = n
		}
	}
	r.Counts[metrics.DecodeBatch] = histogram
	if len(s.Ranks) > 0 {
		byRank := map[string]int64{}
		for rank, n := range s.Ranks {
			if before.Ranks != nil {
				n -= before.Ranks[rank]
			}
			byRank[strconv.Itoa(rank)] = n
		}
		r.Counts[metrics.RankTokens] = byRank
	}
	r.Values[metrics.InFlightMax] = float64(s.MaxInFlight)
	r.Values[metrics.EvictedTokens] = float64(s.EvictedTokens)
	r.Values[metrics.RecomputedTokens] = float64(s.Recomputed)
}

// describePassAtK adds figures of an evaluation in which every rollout has a score: the number of queries for each
// number of right samples, the share of queries with at least one right sample, and the spread of accuracy over the
// samples.
func describePassAtK(r *metrics.Record, outcomes []store.Outcome, samples int) {
	right := map[string]int{}
	runs := make([]score.Mean, samples)
	for _, o := range outcomes {
		right[o.Query] += int(score.Indicator(o.Correct >= 1))
		if o.Rollout < samples {
			runs[o.Rollout].Add(o.Correct)
		}
	}
	solved, histogram := score.Mean{}, map[string]int64{}
	for _, n := range right {
		solved.AddBool(n > 0)
		histogram[strconv.Itoa(n)]++
	}
	solved.Into(r.Values, metrics.PassAtPrefix+strconv.Itoa(samples))
	r.Counts[metrics.RightSamples] = histogram
	if std, known := score.Spread(runs); known {
		r.Values[metrics.AccuracyStd] = std
	}
}

// describeLearning merges the updates of a step: means, the smallest minimum, the largest maximum.
func describeLearning(r *metrics.Record, updates []learner.Report) {
	merged := map[string][]float64{}
	for _, u := range updates {
		r.Values[metrics.UpdatesSkipped] += score.Indicator(u.Skipped)
		r.Values[metrics.UpdatesFailed] += score.Indicator(u.Refused != nil)
		for name, v := range u.Values {
			merged[name] = append(merged[name], v)
		}
	}
	for name, values := range merged {
		switch {
		case strings.HasSuffix(name, "_min"):
			r.Values[name] = slices.Min(values)
		case strings.HasSuffix(name, "_max"):
			r.Values[name] = slices.Max(values)
		default:
			var m score.Mean
			for _, v := range values {
				m.Add(v)
			}
			r.Values[name] = m.Value()
		}
	}
	r.Values[metrics.Updates] = float64(len(updates))
	if len(updates) > 0 {
		maps.DeleteFunc(r.Values, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
		r.Values[metrics.TrainedTokens] = 0
		for _, u := range updates {
			r.Values[metrics.TrainedTokens] += u.Values[metrics.BatchTokens]
		}
	}
}

func (rp *reports) describeMemory(r *metrics.Record) {
	if rp.device == nil {
		return // a hosted model
	}
	m, err := rp.device.Memory(context.Background())
	if err != nil {
		return // an unknown figure is omitted
	}
	r.Values[metrics.MemoryBytes], r.Values[metrics.MemoryPeakBytes] = float64(m.Allocated), float64(m.Peak)
	if !rp.device.IsCUDA() {
		return
	}
	if gpu, err := cuda.MemoryOf(rp.device.Index()); err == nil {
		r.Values[metrics.GPUMemoryUsedBytes] = float64(gpu.Total - gpu.Free)
	}
}

// maxExample is the largest number of bytes of an error in a warning.
const maxExample = 300

// describeTools adds the calls of the agent's tools since the last record, and warns of lost servers and of failing
// tools: agents may learn wrong behaviour from such conversations.
func (rp *reports) describeTools(r *metrics.Record) {
	usage, lost := rp.player.Usage()
	for _, why := range lost {
		rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicTools, "the server of a tool was lost and is being restarted: %s", why))
	}
	if len(usage) == 0 {
		return
	}
	for _, name := range metrics.ByTool {
		r.Counts[name] = map[string]int64{}
	}
	for name, u := range usage {
		r.Counts[metrics.ToolCalls][name] = u.Calls
		r.Counts[metrics.ToolErrors][name] = u.Errors
		r.Counts[metrics.ToolFailures][name] = u.Failures
		r.Counts[metrics.ToolTimeouts][name] = u.Timeouts
		r.Counts[metrics.ToolRefused][name] = u.Refused
		r.Counts[metrics.ToolRetries][name] = u.Retries
		r.Counts[metrics.ToolMilliseconds][name] = u.Time.Milliseconds()
	}
	for _, u := range metrics.ToolUses(r.Counts) {
		if u.Failing() {
			rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicTools,
				"the tool %s failed in %d of %d calls: %d took too long, "+
					"%d were answered with an error, %d of them independent of the arguments; the newest: %s",
				u.Tool, u.Errors+u.Timeouts, u.Made(), u.Timeouts, u.Errors, usage[u.Tool].Failures, tool.Truncate(usage[u.Tool].Example, maxExample)))
		}
	}
}
