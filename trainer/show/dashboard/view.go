package dashboard

import (
	"bytes"
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/report"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// teamView is the data of the section "team".
type teamView struct {
	Problem, Subtitle string
	Damaged           int // number of unreadable records
	Agents            []agentView
	Waits             []string // reasons for waiting, the most important first
}

// agentLabel is an agent with its colour.
type agentLabel struct{ Name, Class string }

type agentView struct {
	agentLabel
	Role, Doing string
	For         []agentLabel // the awaited agents, if it waits
	Since       int64        // milliseconds of Unix time; 0: unknown
	Done, Total int
	Statistics  []statistic
}

// statistic is a number of an agent. Exact is the unrounded number, if it is in the record of its newest step.
type statistic struct{ Name, Label, Value, Exact string }

// class returns the CSS class of an agent's colour, as in the report.
func (r *runState) class(agent string) string {
	if i := slices.Index(r.opt.Agents, agent); i >= 0 {
		return "c" + strconv.Itoa(i%8)
	}
	return "c7"
}

func (r *runState) team(unread []metrics.Line) teamView {
	v := teamView{Problem: r.problem, Damaged: r.damaged, Subtitle: fmt.Sprintf("%d steps", r.opt.Steps)}
	newest := newestSteps(r.allRecords(unread))
	if r.status != nil {
		v.Subtitle = fmt.Sprintf("round %d", r.status.Round)
		if step := r.step(); step >= 0 {
			v.Subtitle = fmt.Sprintf("%d of %d steps made · %s", step, r.opt.Steps, v.Subtitle)
		}
		v.Waits = r.status.WaitsFor()
		if s := r.status.Stop; s != nil {
			v.Waits = append([]string{fmt.Sprintf("The round was stopped by %s (%s): %s", s.Agent, s.Kind, s.Reason)}, v.Waits...)
		}
	}
	for i, agent := range r.opt.Agents {
		a := agentView{agentLabel: agentLabel{agent, r.class(agent)}, Role: "sub-agent", Doing: "is not known yet"}
		if i == 0 {
			a.Role = "main agent"
		}
		r.describe(&a)
		a.Statistics = append(a.Statistics, statistics(newest[agent])...)
		v.Agents = append(v.Agents, a)
	}
	return v
}

// step returns the number of steps that all agents have made, or -1 if it is unknown.
func (r *runState) step() int64 {
	made := int64(-1)
	for _, a := range r.status.Agents {
		if a.Version == nil {
			return -1
		}
		if made < 0 || *a.Version < made {
			made = *a.Version
		}
	}
	return made
}

// describe fills in the store's data about an agent.
func (r *runState) describe(a *agentView) {
	if r.status == nil {
		return
	}
	i := slices.IndexFunc(r.status.Agents, func(s store.AgentStatus) bool { return s.Agent == a.Name })
	if i < 0 {
		return
	}
	s := r.status.Agents[i]
	version := "–"
	if s.Version != nil {
		version = strconv.FormatInt(*s.Version, 10)
	}
	a.Statistics = append(a.Statistics, statistic{"version", "version", version, ""})
	switch {
	case !s.Alive && s.Finished:
		a.Doing = "has finished"
		return
	case !s.Alive:
		a.Doing = "has no worker"
		return
	}
	act := r.activities[a.Name]
	a.Doing, a.Done, a.Total, a.Since = clip(act.Phase), max(act.Done, 0), max(act.Total, 0), max(act.Since.UnixMilli(), 0)
	for _, other := range r.opt.Agents {
		if slices.Contains(act.For, other) {
			a.Doing, a.For = "waits for", append(a.For, agentLabel{other, r.class(other)})
		}
	}
	if a.Doing == "" {
		a.Doing, a.Since = "is about to begin", 0
	}
	a.Statistics = append(a.Statistics, statistic{"rollouts", "rollouts in flight", strconv.Itoa(act.Rollouts), ""})
	if s.ClaimedCount > 0 {
		a.Statistics = append(a.Statistics, statistic{"claimed", "claimed calls", strconv.FormatInt(s.ClaimedCount, 10), ""})
	}
}

// newestSteps maps agents to the values of their newest steps.
func newestSteps(records []metrics.Line) map[string]map[string]float64 {
	out := map[string]map[string]float64{}
	for _, l := range records {
		if l.Kind == metrics.KindStep {
			out[l.Agent] = l.Values
		}
	}
	return out
}

// statistics returns the throughput and the memory of an agent in a step.
func statistics(values map[string]float64) []statistic {
	var out []statistic
	for _, f := range []struct {
		name, label string
		scale       float64
	}{
		{metrics.RolloutTokensPerSecond, "sampled tokens/s", 1},
		{metrics.LearnTokensPerSecond, "trained tokens/s", 1},
		{metrics.MemoryBytes, "memory, MiB", 1 << 20},
		{metrics.MemoryPeakBytes, "peak, MiB", 1 << 20},
		{metrics.GPUMemoryUsedBytes, "GPU memory, MiB", 1 << 20},
	} {
		if v, ok := values[f.name]; ok {
			out = append(out, statistic{f.name, f.label, fmt.Sprintf("%.0f", v/f.scale), strconv.FormatFloat(v, 'f', -1, 64)})
		}
	}
	return out
}

// rolloutsView is the data of the section "rollouts".
type rolloutsView struct {
	Phase, Query, Question, Wanted string
	Rollouts                       []rolloutView
}

type rolloutView struct {
	K     int
	Class string
	Chips []chip
	Turns []turn
	More  int // number of calls that are not shown
}

type chip struct{ Text, Kind string }

// turn is a text with its author, in the colours of the report's trajectories.
type turn struct{ Class, Who, Kind, Text string }

func (r *runState) newest() rolloutsView {
	if len(r.rollouts) == 0 {
		return rolloutsView{}
	}
	first := r.rollouts[0]
	v := rolloutsView{Phase: r.phase, Query: first.Query, Question: first.Question, Wanted: first.Wanted}
	for _, one := range r.rollouts {
		x := rolloutView{K: one.Rollout, Class: r.class(r.opt.Agents[0]), Chips: chips(one.Outcome)}
		calls := 0
		for _, n := range one.Calls {
			calls += n
		}
		x.More = max(calls-len(one.Delegations), 0)
		for _, d := range one.Delegations {
			x.Turns = append(x.Turns, turn{r.class(d.Agent), fmt.Sprintf("%s is asked", d.Agent), "read", d.Task}, r.answer(d))
		}
		if one.Failed == "" {
			x.Turns = append(x.Turns, turn{r.class(r.opt.Agents[0]), "answer", "said", one.Answer})
		}
		if why := cmp.Or(one.Failed, one.Unscored); why != "" {
			x.Turns = append(x.Turns, turn{"", "because", "read", why})
		}
		v.Rollouts = append(v.Rollouts, x)
	}
	return v
}

func (r *runState) answer(d store.AnsweredInvocation) turn {
	t := turn{r.class(d.Agent), d.Agent + " answers", "said", ""}
	switch {
	case d.Answer == nil:
		t.Who, t.Kind = "no answer", "read"
	case d.Answer.Failed != "":
		t.Who, t.Kind, t.Text = "failed", "read", d.Answer.Failed
	default:
		t.Text = d.Answer.Text
	}
	return t
}

func chips(o store.Outcome) []chip {
	switch {
	case o.Failed != "":
		return []chip{{"failed", "minus"}}
	case o.Unscored != "":
		return []chip{{"no score", "minus"}}
	}
	kind := ""
	if o.Correct >= 1 {
		kind = "plus"
	}
	out := []chip{{fmt.Sprintf("reward %.2f", o.Reward), kind}, {fmt.Sprintf("correct %.2f", o.Correct), ""}}
	if !o.Format {
		out = append(out, chip{"invalid format", "minus"})
	}
	return out
}

// reportOf draws the sections of the report if there are new records.
func (r *runState) reportOf(unread []metrics.Line) string {
	all, state := r.allRecords(unread), ""
	if n := len(all); n > 0 {
		state = fmt.Sprint(n, all[n-1].Agent, all[n-1].Kind, all[n-1].Step, all[n-1].Time.UnixNano())
	}
	if state == r.reported {
		return r.report
	}
	var out bytes.Buffer
	if err := (report.Growing{Agents: r.opt.Agents, Records: all}).Write(&out); err != nil {
		return template.HTMLEscapeString(err.Error())
	}
	r.reported, r.report = state, out.String()
	return r.report
}

// maxRunes is the length at which the page cuts texts.
const maxRunes = 2000

func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if r := []rune(s); len(r) > maxRunes {
		return string(r[:maxRunes]) + "…"
	}
	return s
}
