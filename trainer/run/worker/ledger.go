package worker

import (
	"cmp"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// ledgerLine returns the ledger's line for the rollouts of a step. It is written before the step is published, so the
// ledger names exactly the rollouts that the weights were trained on.
func (s *steps) ledgerLine(n int64, outcomes []store.Outcome, complete map[string][]store.Outcome, groups []mgrpo.Group) archive.LedgerLine {
	trained := s.trainedOn(complete, groups)
	line := archive.LedgerLine{Step: n, Rollouts: make([]archive.LedgerRollout, len(outcomes))}
	for i, o := range outcomes {
		line.Rollouts[i] = archive.LedgerRollout{ID: o.ID(), Trained: trained[o.ID()], Removed: whyRemoved(o, trained[o.ID()] != nil)}
	}
	if s.trains() {
		line.Updates = s.learner.Rank0.State.Updates()
	}
	return line
}

// trainedOn returns the weights of this agent's trajectories in the update, by complete rollout. The list of a rollout is
// empty if the agent is frozen.
func (s *steps) trainedOn(complete map[string][]store.Outcome, groups []mgrpo.Group) map[string][]float64 {
	trained := map[string][]float64{}
	for _, outcomes := range complete {
		for _, o := range outcomes {
			n := o.Calls[s.name]
			if s.main {
				n = 1
			}
			if !s.trains() {
				n = 0
			}
			trained[o.ID()] = make([]float64, n)
		}
	}
	if !s.trains() {
		return trained
	}
	for _, g := range groups {
		for _, m := range g.Members {
			trained[store.Outcome{Query: m.Query, Rollout: m.Rollout}.ID()][m.Invocation] = m.Weight
		}
	}
	return trained
}

// lines returns the agent's conversations of the phase with their results, sorted by id.
func (e *experience) lines(a *config.Agent, groups []mgrpo.Group, advantages []mgrpo.GroupAdvantage) []*archive.Line {
	lines := map[string]*archive.Line{}
	for id, t := range e.trajectories {
		lines[id] = &archive.Line{Trajectory: t.conversation, Task: t.task, Expert: t.expert, Program: t.program}
		for _, row := range t.conversation.More {
			lines[row.ID] = &archive.Line{Trajectory: agent.Trajectory{Row: row}, Task: t.task, RowOf: id}
		}
	}
	for i, g := range groups {
		for j, m := range g.Members {
			l := lines[idOf(a, m.Query, m.Rollout, m.Invocation)]
			l.Reward, l.Weight, l.Advantage = &m.Reward, m.Weight, advantages[i].Advantage[j]
		}
	}
	return slices.SortedFunc(maps.Values(lines), func(a, b *archive.Line) int { return cmp.Compare(a.ID, b.ID) })
}
