package trainer

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// ErrNothingTrained is the error of a run whose steps changed no weight.
var ErrNothingTrained = errors.New("nothing was trained")

// tally is what the steps of this process came to, as far as the end of the run has to speak of it.
type tally struct {
	steps   int
	sampled int            // turns of this agent
	calls   map[string]int // how often each sub-agent was called
	tooLong map[string]int // by query: tokens of a prompt that left no room for an answer
	idle    int            // steps in a row, up to the newest, without a group whose rewards differ
}

// idleSteps in a row without a reward to learn from are worth a warning, and so are twice as many, four times as many and so on.
const idleSteps = 10

// learnsNothing counts a step's groups. It returns a warning if for many steps there has been none to learn from; "": nothing to warn of.
func (y *tally) learnsNothing(step mgrpo.Totals) string {
	if step.Degenerate < step.Groups {
		y.idle = 0
		return ""
	}
	y.idle++
	if n := y.idle / idleSteps; y.idle%idleSteps != 0 || n&(n-1) != 0 {
		return ""
	}
	if step.Groups == 0 {
		return fmt.Sprintf("it learned nothing from the rewards of the last %s: it has no group in the newest", metrics.Steps(int64(y.idle)))
	}
	return fmt.Sprintf("it learned nothing from the rewards of the last %s: within each group all rewards were equal. Look at trajectories/ for what the agents answer; take queries that are sometimes answered right and sometimes wrong",
		metrics.Steps(int64(y.idle)))
}

// count adds a step. It warns of the first queries whose prompts leave no room for an answer, and if for many steps there has been nothing to
// learn from.
func (w *worker) count(held *experience, outcomes []store.Outcome, groups mgrpo.Totals) {
	y := &w.tally
	y.steps++
	if why := y.learnsNothing(groups); why != "" && w.trains() {
		w.observer.Note(metrics.Warnf(w.name, metrics.TopicUpdate, "%s", why))
	}
	if y.calls == nil {
		y.calls, y.tooLong = map[string]int{}, map[string]int{}
	}
	for _, o := range outcomes {
		for name, n := range o.Calls {
			y.calls[name] += n
		}
	}
	for _, t := range held.trajectories {
		y.sampled += t.SampledTurns()
		if _, known := y.tooLong[t.Query]; known || !promptTooLong(t.Trajectory) {
			continue
		}
		y.tooLong[t.Query] = len(t.Tokens)
		const named = 5
		switch {
		case len(y.tooLong) > named:
		case w.Model == nil:
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicTask, "the prompt of %s is longer than the context of the hosted model: nothing is said to it; leave the row out", t.Query))
		default:
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicTask,
				"the prompt of %s has %d tokens and a conversation may have %d: nothing is sampled for it; raise agents.%s.limits.max_tokens or engine.context, or leave the row out",
				t.Query, len(t.Tokens), w.context(), w.name))
		}
	}
}

// promptTooLong says whether a conversation ended before its first turn for want of room.
func promptTooLong(t agent.Trajectory) bool {
	return t.SampledTurns() == 0 && (t.Finish == agent.FinishTokens || t.Finish == agent.FinishContext)
}

// ending says, of a run that came to its end, what was not done in it and what to do about it.
func (w *worker) ending() []string {
	y, out := w.tally, []string(nil)
	if y.steps == 0 {
		return nil
	}
	steps := metrics.Steps(int64(y.steps))
	if len(y.tooLong) > 0 {
		out = append(out, fmt.Sprintf("%d queries had prompts that left no room for an answer", len(y.tooLong)))
	}
	if w.main {
		for _, name := range w.cfg.AgentNames()[1:] {
			if y.calls[name] == 0 {
				so := ""
				if w.cfg.Learns(w.cfg.Agent(name)) {
					so = ", so it learned nothing"
				}
				out = append(out, fmt.Sprintf("%s was never called in %s%s: have %s's prompt or its cold start's demonstrations call it", name, steps, so, w.name))
			}
		}
	}
	switch {
	case !w.main && y.calls[w.name] == 0:
		out = append(out, "nobody called it in "+steps)
	case y.sampled == 0 && (w.main || len(out) > 0):
		out = append(out, "not one token was sampled in "+steps)
	case w.trains() && !w.trained():
		teach := "teach them the format in a cold start"
		if w.cfg.ColdStarts(w.agent) {
			teach = "give them a longer cold start"
		}
		out = append(out, fmt.Sprintf("no update was made in %s: in every group all rewards were equal. Look at trajectories/ for what the agents answer, %s, or take easier queries", steps, teach))
	}
	return out
}

// trained reports whether a step has changed the agent's weights since the run began. A cold start does not count.
func (w *worker) trained() bool { return w.trains() && w.Learner.Steps() > 0 }

// sum speaks for the workers of a process whose run came to its end. Where there were steps to learn from and no
// weight changed, it returns an ErrNothingTrained with the reasons. That nobody called an agent is for the main agent's process to fail of: the
// agent's own has done what there was to do.
func (t *team) sum() error {
	calls := slices.ContainsFunc(t.workers, func(w *worker) bool { return w.main })
	var reasons []string
	learns, learned := false, false
	for _, w := range t.workers {
		for _, text := range w.ending() {
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicStop, "%s", text))
			reasons = append(reasons, w.name+": "+text)
		}
		learns = learns || w.trains() && w.tally.steps > 0 && (calls || w.tally.calls[w.name] > 0)
		learned = learned || w.trained()
	}
	if !learns || learned {
		return nil
	}
	slices.Sort(reasons)
	return fmt.Errorf("%w: %s", ErrNothingTrained, strings.Join(reasons, "; "))
}
