package metrics

import (
	"fmt"
	"strings"
)

// Activity is the kind of work that an agent does. Its text is the value of the label `phase` of mgrpo_phase_info.
type Activity string

// The activities.
const (
	ColdStart     Activity = "cold_start"
	RollOut       Activity = "step" // conversations to train on
	Evaluate      Activity = "eval"
	LogProbs      Activity = "log-probs" // log-probs of the sampled tokens, under the current weights and the reference
	Learn         Activity = "learn"
	Checkpointing Activity = "checkpoint"
	Waiting       Activity = "waiting"
)

// Progress is the current activity of an agent and its progress.
type Progress struct {
	Agent       string
	Activity    Activity
	Version     int64    // policy version that rolls out, is evaluated or is saved
	For         []string // the awaited agents, if the activity is Waiting
	Done, Total int      // finished units and total units; Total 0: unknown
}

// Phase returns the activity as text: step-3, cold start, waits for researcher.
func (p Progress) Phase() string {
	switch p.Activity {
	case RollOut, Evaluate, Checkpointing:
		return fmt.Sprintf("%s-%d", p.Activity, p.Version)
	case ColdStart:
		return "cold start"
	case Waiting:
		return "waits for " + strings.Join(p.For, ", ")
	}
	return string(p.Activity)
}

// String returns agent, phase and progress: planner step-3 12/128.
func (p Progress) String() string {
	text := p.Agent + " " + p.Phase()
	switch {
	case p.Total > 0:
		text += fmt.Sprintf(" %d/%d", p.Done, p.Total)
	case p.Done > 0:
		text += fmt.Sprintf(" %d", p.Done)
	}
	return text
}
