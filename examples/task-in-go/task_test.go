package main

import (
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/tasktest"
)

// The roles of the team.
var (
	planner = task.AgentRole{Agent: "planner", Main: true, Delegates: []string{"clerk"}}
	clerk   = task.AgentRole{Agent: "clerk"}
)

// TestMeasures checks the rules that every task follows: a sub-agent's server, for example, makes a query again from its id.
func TestMeasures(t *testing.T) {
	m, err := newMeasures(7, 20)
	if err != nil {
		t.Fatal(err)
	}
	tasktest.Check(t, m, planner, clerk)
	for _, id := range []string{"eval", "eval-", "other-3", "train-x"} {
		if _, err := m.Lookup(id); err == nil {
			t.Errorf("%q is a query", id)
		}
	}
}

// TestDemonstrations: the tokenizer has every word that is demonstrated, and some of the answers are right, some not.
func TestDemonstrations(t *testing.T) {
	m, err := newMeasures(7, 20)
	if err != nil {
		t.Fatal(err)
	}
	files, err := words().Files()
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	right, shown := 0, 0
	for d := range m.Demonstrations(planner, 200) {
		last := d.Segments[len(d.Segments)-1]
		score, err := m.VerifyMain(t.Context(), m.query("demonstration", int64(shown)), task.Attempt{Answer: last.Text})
		if err != nil {
			t.Fatal(err)
		}
		right += int(score)
		shown++
	}
	if right < shown/4 || right > shown*3/4 {
		t.Errorf("%d of %d demonstrated answers are right", right, shown)
	}
	for d := range m.Demonstrations(clerk, 200) {
		for _, s := range d.Segments {
			if slices.Contains(tok.Encode(s.Text), tok.Unk()) {
				t.Errorf("the tokenizer lacks a word of %q", s.Text)
			}
		}
	}
}
