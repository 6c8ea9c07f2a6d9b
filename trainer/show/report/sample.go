package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// trajectorySample holds the report's trajectories in the form that its script reads.
type trajectorySample struct {
	Agents   []string  `json:"agents"`
	Phases   []string  `json:"phases"` // labels
	Rollouts []rollout `json:"rollouts"`

	steps   int // number of training steps included
	queries int // number of queries included
	of      int // number of queries in all phases
}

// rollout is a rollout of the team.
type rollout struct {
	Phase int          `json:"phase"` // index into Phases
	Query string       `json:"query"`
	K     int          `json:"k"`
	Main  *trajectory  `json:"main,omitempty"` // absent if the main agent's files are not here
	Subs  []trajectory `json:"subs,omitempty"`
}

// trajectory is a trajectory as the report shows it.
type trajectory struct {
	Agent      int            `json:"agent"` // index into Agents
	Invocation int            `json:"i"`
	Task       string         `json:"task"`
	Reward     *float64       `json:"reward,omitempty"`
	Expert     *float64       `json:"expert,omitempty"`
	Weight     float64        `json:"weight"`
	Advantage  float64        `json:"adv"`
	Valid      bool           `json:"valid"`
	Malformed  int            `json:"malformed,omitempty"`
	Finish     string         `json:"finish"`
	Answer     string         `json:"answer"`
	Calls      map[string]int `json:"calls,omitempty"`
	Version    int64          `json:"version"`
	Tokens     int            `json:"tokens,omitempty"` // 0: unknown
	Sampled    int            `json:"sampled"`
	Turns      []turn         `json:"turns"`
}

// turn is a turn's text or, for a sampled turn of an agent with a known tokenizer, its tokens with their log-probs.
type turn struct {
	Role   string  `json:"role"`
	Text   string  `json:"text,omitempty"`
	Tokens []token `json:"tokens,omitempty"`
	Cut    int     `json:"cut,omitempty"` // number of characters or tokens omitted at the end
}

// token is a token's text and log-prob, marshalled as [text, log-prob].
type token struct {
	text    string
	logProb float32
}

func (t token) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{t.text, json.Number(fmt.Sprintf("%.3f", t.logProb))})
}

// sample chooses trajectories of opt.Steps steps (see evenlySpaced), and of the first and the last evaluation.
// It takes a few queries of each, evenly spread, with all their rollouts, until opt.Bytes are used. Each phase has an equal
// share of the bytes, plus the bytes that earlier phases did not use. The choice does not depend on the content of
// trajectories, so it is a fair sample of the run.
func (r *run) sample(opt Options) (trajectorySample, error) {
	out := trajectorySample{Agents: r.agents, Rollouts: []rollout{}, Phases: []string{}}
	files, err := r.trajectoryFiles()
	if err != nil {
		return out, err
	}
	if len(files) == 0 {
		r.lacks("There are no trajectories.")
		return out, nil
	}
	byPhase := map[phase][]trajectoryFile{}
	for _, f := range files {
		byPhase[f.phase] = append(byPhase[f.phase], f)
	}
	budget, tokenizers := opt.Bytes, &tokenizers{dirs: r.dirs, loaded: map[string]*tokenizer.Tokenizer{}}
	phases := choosePhases(byPhase, opt.Steps)
	for i, p := range phases {
		share := budget / (len(phases) - i)
		rollouts, queries, all, err := r.rolloutsOf(byPhase[p], opt.Queries, tokenizers)
		if err != nil {
			return out, err
		}
		out.of += all
		fitted := out.queries
		for _, q := range queries {
			size := 0
			for _, x := range rollouts[q] {
				text, err := json.Marshal(x)
				if err != nil {
					return out, fmt.Errorf("trajectories of %s: %w", p.label(), err)
				}
				size += len(text)
			}
			if size > share {
				break
			}
			share, budget = share-size, budget-size
			out.queries++
			for _, x := range rollouts[q] {
				x.Phase = len(out.Phases)
				out.Rollouts = append(out.Rollouts, x)
			}
		}
		if out.queries == fitted && len(queries) > 0 {
			r.lacks("trajectories of %s: the rollouts of one query need more than --megabytes leaves for them", p.label())
		}
		out.Phases = append(out.Phases, p.label())
		out.steps++
	}
	r.noteSpeakers(tokenizers)
	return out, nil
}

// choosePhases returns n evenly spread training steps and the first and the last evaluation, in the order of the run.
func choosePhases(byPhase map[phase][]trajectoryFile, n int) []phase {
	inOrder := func(a, b phase) int { return cmp.Compare(a.sortKey(), b.sortKey()) }
	var steps, evals []phase
	for _, p := range slices.SortedFunc(maps.Keys(byPhase), inOrder) {
		if p.eval {
			evals = append(evals, p)
		} else {
			steps = append(steps, p)
		}
	}
	out := append(evenlySpaced(steps, n), evenlySpaced(evals, 2)...)
	slices.SortFunc(out, inOrder)
	return out
}

// evenlySpaced returns n evenly spaced elements of a list, including the first and the last. If n is 1, it returns the last.
func evenlySpaced[T any](list []T, n int) []T {
	if len(list) <= n {
		return list
	}
	if n == 1 {
		return list[len(list)-1:]
	}
	out := make([]T, n)
	for i := range out {
		out[i] = list[i*(len(list)-1)/(n-1)]
	}
	return out
}

// rolloutsOf reads n queries of a phase. It returns their rollouts by query, the queries in order, and the number of
// queries in the phase.
func (r *run) rolloutsOf(files []trajectoryFile, n int, tokenizers *tokenizers) (byQuery map[string][]rollout, queries []string, all int, err error) {
	found := map[string]bool{}
	for _, f := range files {
		own, err := queriesIn(f.path)
		if err != nil {
			return nil, nil, 0, err
		}
		maps.Copy(found, own)
	}
	all = len(found)
	queries = evenlySpaced(slices.Sorted(maps.Keys(found)), n)
	attempts := map[string]*rollout{}
	at := func(l line) *rollout {
		id := fmt.Sprintf("%s/%d", l.Query, l.Rollout)
		if attempts[id] == nil {
			attempts[id] = &rollout{Query: l.Query, K: l.Rollout}
		}
		return attempts[id]
	}
	for _, f := range files {
		lines, damaged, err := trajectoriesOf(f, queries)
		if err != nil {
			return nil, nil, 0, err
		}
		if damaged > 0 {
			r.lacks("%s: %d damaged trajectories of %s were skipped.", f.phase.label(), damaged, f.agent)
		}
		for _, l := range lines {
			trajectory := tokenizers.show(l, slices.Index(r.agents, l.Agent))
			if l.isMain() {
				at(l).Main = &trajectory
			} else {
				at(l).Subs = append(at(l).Subs, trajectory)
			}
		}
	}
	byQuery = map[string][]rollout{}
	for _, a := range attempts {
		slices.SortFunc(a.Subs, func(x, y trajectory) int {
			return cmp.Or(cmp.Compare(x.Agent, y.Agent), cmp.Compare(x.Invocation, y.Invocation))
		})
		byQuery[a.Query] = append(byQuery[a.Query], *a)
	}
	for _, list := range byQuery {
		slices.SortFunc(list, func(a, b rollout) int { return a.K - b.K })
	}
	return byQuery, queries, all, nil
}
