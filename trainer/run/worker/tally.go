package worker

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// tally counts events of a worker's steps in this round of the run. The end of the run reports them.
type tally struct {
	steps    int
	sampled  int            // sampled turns of this agent
	calls    map[string]int // number of calls of each sub-agent
	tooLong  map[string]int // tokens of prompts that left no room for an answer, by query
	idle     int            // number of latest steps in a row without a group whose rewards differ
	groups   int            // groups of this agent in all steps
	rollouts int            // rollouts in all steps
	unscored int            // rollouts without a score, which are removed
}

// idleSteps is the number of consecutive steps without differing rewards after which a warning appears. The warning appears
// again after twice and four times as many steps, and so on.
const idleSteps = 10

// learnsNothing counts a step's groups. It returns a warning if many consecutive steps had nothing to learn from, otherwise
// "".
func (t *tally) learnsNothing(step mgrpo.Totals) string {
	if step.Degenerate < step.Groups {
		t.idle = 0
		return ""
	}
	t.idle++
	if n := t.idle / idleSteps; t.idle%idleSteps != 0 || n&(n-1) != 0 {
		return ""
	}
	if step.Groups == 0 {
		return fmt.Sprintf("it learned nothing from the rewards of the last %s: there is no group of this agent in the newest step",
			metrics.Steps(int64(t.idle)))
	}
	return fmt.Sprintf("it learned nothing from the rewards of the last %s: within each group all rewards were equal. Look at trajectories/ for what "+
		"the agents answer; take queries that are sometimes answered right and sometimes wrong",
		metrics.Steps(int64(t.idle)))
}

// count adds a step to the tally. It warns of the first queries whose prompts leave no room for an answer, and if many
// steps had nothing to learn from.
func (rp *reports) count(exp *experience, outcomes []store.Outcome, groups mgrpo.Totals) {
	tally := &rp.tally
	tally.steps++
	if why := tally.learnsNothing(groups); why != "" && rp.trains() {
		rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicUpdate, "%s", why))
	}
	if tally.calls == nil {
		tally.calls, tally.tooLong = map[string]int{}, map[string]int{}
	}
	tally.groups += groups.Groups
	tally.rollouts += len(outcomes)
	for _, o := range outcomes {
		for name, n := range o.Calls {
			tally.calls[name] += n
		}
		if o.Failed != "" || o.Unscored != "" {
			tally.unscored++
		}
	}
	for _, t := range exp.trajectories {
		tally.sampled += t.conversation.SampledTurns()
		if _, known := tally.tooLong[t.conversation.Query]; known || !promptTooLong(t.conversation) {
			continue
		}
		tally.tooLong[t.conversation.Query] = len(t.conversation.Tokens)
		const named = 5
		switch {
		case len(tally.tooLong) > named:
		case rp.device == nil:
			rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicTask,
				"the prompt of %s is longer than the context of the hosted model, so no turn is requested; remove the row", t.conversation.Query))
		default:
			rp.observer.Note(metrics.Warnf(rp.name, metrics.TopicTask,
				"the prompt of %s has %d tokens and a conversation may have %d, so nothing is sampled; raise agents.%s.limits.max_tokens, "+
					"or remove the row",
				t.conversation.Query, len(t.conversation.Tokens), rp.contextTokens, rp.name))
		}
	}
}

// promptTooLong reports whether a conversation ended before its first turn because its prompt left no room.
func promptTooLong(t agent.Trajectory) bool {
	return t.SampledTurns() == 0 && (t.Finish == agent.FinishTokens || t.Finish == agent.FinishContext)
}

// ending lists the expected actions that did not happen in a completed run, each with a remedy.
func (rp *reports) ending() []string {
	tally, out := rp.tally, []string(nil)
	if tally.steps == 0 {
		return nil
	}
	steps := metrics.Steps(int64(tally.steps))
	if tally.unscored > 0 && tally.unscored == tally.rollouts {
		return []string{fmt.Sprintf("all %d rollouts of %s had no score and were removed: the warnings of these steps give the reasons", tally.rollouts, steps)}
	}
	if len(tally.tooLong) > 0 {
		out = append(out, fmt.Sprintf("%d queries had prompts that left no room for an answer", len(tally.tooLong)))
	}
	if rp.main {
		for _, name := range rp.cfg.AgentNames()[1:] {
			if tally.calls[name] == 0 {
				so := ""
				if rp.cfg.Learns(rp.cfg.Agent(name)) {
					so = ", so it learned nothing"
				}
				out = append(out, fmt.Sprintf("%s was never called in %s%s: have %s's prompt or its cold start's demonstrations call it", name, steps,
					so, rp.name))
			}
		}
	}
	switch {
	case !rp.main && tally.calls[rp.name] == 0:
		out = append(out, "it was never called in "+steps)
	case tally.sampled == 0 && (rp.main || len(out) > 0):
		out = append(out, "no token was sampled in "+steps)
	case rp.trains() && !rp.trained() && tally.groups == 0 && tally.unscored > 0:
		out = append(out, fmt.Sprintf("no update was made in %s: %d of %d rollouts had no score and were removed, so no group was left: the warnings "+
			"of these steps give the reasons", steps, tally.unscored, tally.rollouts))
	case rp.trains() && !rp.trained():
		teach := "teach them the format in a cold start"
		if rp.cfg.ColdStarts(rp.agent) {
			teach = "give them a longer cold start"
		}
		out = append(out, fmt.Sprintf("no update was made in %s: in every group all rewards were equal. Look at trajectories/ for what the agents "+
			"answer, %s, or take easier queries", steps, teach))
	}
	return out
}

// Ending summarises a worker's steps when the run is complete.
type Ending struct {
	Missed  []string // expected actions that did not happen, each with a remedy
	Trains  bool     // there were steps, and the agent learns
	Called  bool     // this agent was called; false for the main agent
	Trained bool     // a step changed the agent's weights
}

// Ending returns the summary of a completed run.
func (w *Worker) Ending() Ending {
	tally := w.reports.tally
	return Ending{Missed: w.reports.ending(), Trains: w.trains() && tally.steps > 0, Called: tally.calls[w.name] > 0, Trained: w.trained()}
}
