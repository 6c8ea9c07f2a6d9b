package research

import (
	"iter"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Demonstrations yields the scripted conversations on n queries for an agent's role. A researcher has one conversation
// for each call of the planner. The queries are from a separate split. Planner and researcher act in the same rollouts.
func (t *Task) Demonstrations(role task.AgentRole, n int) iter.Seq[task.Demonstration] {
	grammarRole, err := roleOf(role)
	if err != nil {
		n = 0 // the agent has no role in the task; Dialect returns the error
	}
	return func(yield func(task.Demonstration) bool) {
		for i := range int64(n) {
			for _, d := range t.demonstrate(grammarRole, i) {
				if !yield(d) {
					return
				}
			}
		}
	}
}

func (t *Task) demonstrate(role Role, i int64) []task.Demonstration {
	q := t.query(splitDemo, i)
	e := &expert{kb: q.Data.(*KB), noise: t.opt.Noise, failures: t.shape.Failures, s: task.NewStream(t.opt.Seed, "research.expert", i)}
	switch role {
	case Planner:
		planner, _ := e.team(q)
		return []task.Demonstration{planner}
	case Researcher:
		_, researchers := e.team(q)
		return researchers
	case Single:
		return []task.Demonstration{e.single(q)}
	}
	return nil
}

// team plays planner and researcher and returns their conversations.
func (e *expert) team(q task.Query) (planner task.Demonstration, researchers []task.Demonstration) {
	p := newTranscript(Planner, q.ID, q.Text)
	answer := e.plan(func(entity, relation string) (string, bool) {
		p.say("call", entity, relation)
		r := newTranscript(Researcher, q.ID, entity+" "+relation)
		finding := e.research(entity, relation, e.limits().searches, e.search(r))
		r.say("result", finding...)
		researchers = append(researchers, r.Demonstration)
		p.observe(strings.Join(finding, " "))
		return lastName(finding), true
	})
	p.say("answer", strings.Fields(answer)...)
	return p.Demonstration, researchers
}

// single plays both roles in one conversation and writes findings as notes.
func (e *expert) single(q task.Query) task.Demonstration {
	t := newTranscript(Single, q.ID, q.Text)
	searches := e.limits().singleSearches
	answer := e.plan(func(entity, relation string) (string, bool) {
		if searches == 0 {
			return "", false
		}
		search := e.search(t)
		finding := e.research(entity, relation, min(searches, e.limits().searches), func(words []string) []Fact {
			searches--
			return search(words)
		})
		t.say("note", finding...)
		return lastName(finding), true
	})
	t.say("answer", strings.Fields(answer)...)
	return t.Demonstration
}
