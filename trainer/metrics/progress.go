package metrics

import (
	"fmt"
	"strings"
)

// Activity is a kind of work of an agent. Its text is the value of the label `phase` of mgrpo_phase_info.
type Activity string

// The activities.
const (
	ColdStart     Activity = "cold_start"
	RollOut       Activity = "step" // conversations to train on
	Evaluate      Activity = "eval"
	Learn         Activity = "learn"
	Checkpointing Activity = "checkpoint"
	Waiting       Activity = "waiting"
)

// Progress is what an agent is at, and how far it is.
type Progress struct {
	Agent       string
	Activity    Activity
	Version     int64    // of the weights that roll out, are evaluated or saved
	For         []string // of Waiting: the agents that are waited for
	Done, Total int      // units that are through, and in all; Total 0: not known
}

// Phase is the activity in words: step-3, cold start, waits for researcher.
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

// String is all of it in words: planner step-3 12/128.
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
