package worker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// maxReason is the largest number of bytes of a verifier's error that is published in the store, ledgers and records.
const maxReason = 500

// reasonOf returns an error in the form in which it is published.
func reasonOf(err error) string { return texts.Excerpt(err.Error(), maxReason) }

// whyRemoved returns the reason why a rollout is not in any group, or "" if it is in one. complete means that every agent
// has its trajectories of the rollout.
func whyRemoved(o store.Outcome, complete bool) string {
	switch {
	case o.Failed != "":
		return "failed: " + o.Failed
	case complete:
		return ""
	case o.Unscored != "":
		return "a call has no score: " + o.Unscored
	}
	return "one of its trajectories is missing"
}

// unscoredCalls collects the reasons why calls of a rollout have no score. The calls of a turn run concurrently, so the first
// reason by name is reported, not by time: a rollout that is played again has the same reason.
type unscoredCalls struct {
	mu      sync.Mutex
	reasons map[string]string // by name of the call
}

func (u *unscoredCalls) add(v store.Invocation, failed string) {
	if failed == "" {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reasons == nil {
		u.reasons = map[string]string{}
	}
	u.reasons[v.ID()] = v.Agent + ": " + failed
}

func (u *unscoredCalls) first() string {
	for _, id := range slices.Sorted(maps.Keys(u.reasons)) {
		return u.reasons[id]
	}
	return ""
}

// countUnscored reports a step's rollouts without a score, and returns an error if there are too many in several consecutive steps.
// Rollouts do not lack scores at random, so the remaining ones are not a fair sample of the policy. Rollouts that were
// removed because a trajectory was too old for grpo.max_lag do not count.
func (s *steps) countUnscored(n int64, outcomes []store.Outcome, complete map[string][]store.Outcome) error {
	isComplete := map[string]bool{}
	for _, ofQuery := range complete {
		for _, o := range ofQuery {
			isComplete[o.ID()] = true
		}
	}
	count, reason := 0, ""
	for _, o := range outcomes {
		why := whyRemoved(o, isComplete[o.ID()])
		if why == "" || o.Failed == "" && o.Unscored == "" {
			continue
		}
		count++
		reason = cmp.Or(reason, why)
	}
	if s.main && count > 0 {
		s.observer.Note(metrics.Warnf(s.name, metrics.TopicVerifier,
			"step %d: %d of %d rollouts have no score and were removed: %s", n+1, count, len(outcomes), reason))
	}
	if !s.unscoredSteps.add(float64(count) > s.cfg.GRPO.MaxRemoved*float64(len(outcomes))) {
		return nil
	}
	return fmt.Errorf("step %d: %d of %d rollouts have no score and were removed; "+
		"in %d consecutive steps it was more than grpo.max_removed (%g): the remaining rollouts are not a fair sample. %s",
		n+1, count, len(outcomes), maxStreak, s.cfg.GRPO.MaxRemoved, reason)
}
