package store

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// PhaseStatus is the progress of a phase.
type PhaseStatus struct {
	Phase      string     `json:"phase"`
	Begun      bool       `json:"begun"`             // its plan is published; a checkpoint has no plan
	Ended      bool       `json:"ended"`             // all rollouts have ended
	Outcomes   int64      `json:"outcomes"`          // published outcomes
	Rollouts   int64      `json:"rollouts"`          // planned rollouts
	Unanswered int64      `json:"unanswered"`        // invocations without an answer
	Lacking    []string   `json:"lacking,omitempty"` // agents that have not published the value that is due next
	Behind     []string   `json:"behind,omitempty"`  // agents that have not committed the step
	lacks      phaseValue // the value that they have not published
	planless   bool       // the phase is the saving of a checkpoint
	step       int64
}

// phaseNames returns the names of the newest phases, the oldest first. It reads the list in pages, because a run that writes
// no checkpoints keeps the phases of all its steps.
func phaseNames(ctx context.Context, s *Store) (names []string, err error) {
	for from := int64(0); ; from += statusPhases {
		page, err := s.rdb.ZRangeByScore(ctx, s.key("phases"), &redis.ZRangeBy{Min: "-inf", Max: "+inf", Offset: from, Count: statusPhases}).Result()
		if err != nil {
			return nil, err
		}
		names = append(names, page...)
		names = names[max(0, len(names)-statusPhases):]
		if len(page) < statusPhases {
			return names, nil
		}
	}
}

// listPhases lists the phases from the oldest version of any agent, and all checkpoints, which may be saved after later
// steps have begun.
func (r *statusReader) listPhases() error {
	names, err := phaseNames(r.ctx, r.s)
	if err != nil {
		return err
	}
	oldest := int64(math.MaxInt64)
	for _, a := range r.out.Agents {
		if a.Version != nil {
			oldest = min(oldest, *a.Version)
		}
	}
	for _, name := range names {
		p, err := parsePhase(name)
		if err != nil {
			return &MalformedError{Key: r.s.key("phases"), Msg: err.Error()}
		}
		if p.hasNoPlan() || p.Step >= oldest {
			r.phases = append(r.phases, p)
		}
	}
	return nil
}

// parsePhase reads the name of a phase.
func parsePhase(name string) (Phase, error) {
	kind, number, _ := strings.Cut(name, "-")
	step, err := strconv.ParseInt(number, 10, 64)
	p := Phase{Kind: kind, Step: step}
	if err != nil || p.check() != nil || p.String() != name {
		return Phase{}, fmt.Errorf("%q is not a phase", clip(name))
	}
	return p, nil
}

// hasNoPlan reports whether a phase is the saving of a checkpoint, which has no rollouts.
func (p Phase) hasNoPlan() bool { return p.Kind == checkpointOf(0).Kind }

// expects returns the values that every agent publishes in a phase, in this order. A worker that starts from a checkpoint
// already has its manifest and does not publish its part.
func (p Phase) expects() []phaseValue {
	switch p.Kind {
	case TrainPhase(0).Kind:
		return []phaseValue{trajectoriesValue}
	case checkpointOf(0).Kind:
		return []phaseValue{partValue, manifestValue}
	}
	return nil // the trajectories of an evaluation are not trained on
}

// progress reads the progress of the phases, and keeps the incomplete ones.
func (r *statusReader) progress() error {
	type replies struct {
		plan                     *redis.StringCmd
		ended                    *redis.BoolCmd
		outcomes, calls, results *redis.IntCmd
		published                [][]*redis.BoolCmd // by value and agent
	}
	answers := make([]replies, len(r.phases))
	err := r.ask(func(p redis.Pipeliner) {
		for i, phase := range r.phases {
			name := phase.String()
			if !phase.hasNoPlan() {
				answers[i] = replies{plan: p.HGet(r.ctx, r.s.key("plan", name), "plan"), ended: p.HExists(r.ctx, r.s.key("plan", name), "ended"),
					outcomes: p.HLen(r.ctx, r.s.key("outcome", name)), calls: p.HLen(r.ctx, r.s.key("call", name)),
					results: p.HLen(r.ctx, r.s.key("result", name))}
			}
			for _, t := range phase.expects() {
				var published []*redis.BoolCmd
				for _, a := range r.names {
					published = append(published, p.HExists(r.ctx, r.s.key(t.kind, name), a))
				}
				answers[i].published = append(answers[i].published, published)
			}
		}
	})
	if err != nil {
		return err
	}
	for i, phase := range r.phases {
		a, st := answers[i], PhaseStatus{Phase: phase.String(), planless: phase.hasNoPlan(), step: phase.Step}
		for j, published := range a.published {
			lacking := r.unpublished(published)
			if j > 0 && len(st.Lacking) > 0 && len(lacking) == len(r.names) {
				break // this value is not due yet: the run still waits for the previous one
			}
			st.Lacking, st.lacks = lacking, phase.expects()[j]
		}
		if !st.planless && a.plan.Err() == nil {
			plan, err := decode[Plan](r.s.key("plan", phase.String()), a.plan.Val())
			if err != nil {
				return err
			}
			st.Begun, st.Ended = true, a.ended.Val()
			st.Rollouts, st.Outcomes = int64(len(plan.Queries))*int64(plan.Rollouts), a.outcomes.Val()
			st.Unanswered = max(a.calls.Val()-a.results.Val(), 0)
		}
		if phase.Kind == TrainPhase(0).Kind {
			st.Behind = r.behind(phase.Step + 1)
		}
		if st.Begun && st.Rollouts == 0 { // a phase without queries ends the run
			continue
		}
		if st.pending() {
			r.out.Phases = append(r.out.Phases, st)
		}
	}
	r.out.Phases = r.out.Phases[max(len(r.out.Phases)-statusShown, 0):]
	return nil
}

// unpublished lists the agents that have not published a value.
func (r *statusReader) unpublished(published []*redis.BoolCmd) []string {
	var out []string
	for i, exists := range published {
		if !exists.Val() {
			out = append(out, r.names[i])
		}
	}
	return out
}

// behind lists the agents that have not committed a version.
func (r *statusReader) behind(version int64) []string {
	var out []string
	for _, a := range r.out.Agents {
		if a.Version == nil || *a.Version < version {
			out = append(out, a.Agent)
		}
	}
	return out
}

// pending reports whether the phase is incomplete.
func (p *PhaseStatus) pending() bool {
	if p.planless {
		return len(p.Lacking) > 0
	}
	return !p.Begun || !p.Ended || p.Outcomes < p.Rollouts || len(p.Lacking) > 0 || len(p.Behind) > 0
}

// waits calls add with the first incomplete stage of a phase, and the agents that must complete it.
func (p *PhaseStatus) waits(add func(agents []string, what string), main []string) {
	switch {
	case p.planless:
		add(p.Lacking, p.lacks.what+" "+p.Phase)
	case !p.Begun:
		add(main, "the beginning of "+p.Phase)
	case p.Outcomes < p.Rollouts || !p.Ended:
		what := fmt.Sprintf("rollouts of %s, %d of %d are there", p.Phase, p.Outcomes, p.Rollouts)
		if p.Unanswered > 0 {
			what += fmt.Sprintf("; calls without an answer: %d", p.Unanswered)
		}
		add(main, what)
	case len(p.Lacking) > 0:
		add(p.Lacking, p.lacks.what+" "+p.Phase)
	default:
		add(p.Behind, fmt.Sprintf("version %d", p.step+1))
	}
}
