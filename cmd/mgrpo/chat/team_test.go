package chat

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// TestTeam: each line is a question to the team. A held-out question is printed with its
// reference answer. An error ends a question, and the session continues.
func TestTeam(t *testing.T) {
	var out, notes strings.Builder
	var asked []string
	in := strings.NewReader("why?\n/ask 2\n/ask 3\nfail\n/what\n\n/exit\nnever\n")
	team := Team{Terminal: Terminal{In: in, Out: &out, Notes: &notes}, Questions: 2,
		BindHeldOut: func(n int) task.Query { return task.Query{Text: []string{"first?", "second?"}[n], Answer: "two"} },
		Ask: func(_ context.Context, question string, tell func(string)) (string, error) {
			asked = append(asked, question)
			if question == "fail" {
				return "", errors.New("no such word")
			}
			tell("planner -> solver: " + question)
			return "an answer", nil
		}}
	if err := team.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := "why? second? fail"; strings.Join(asked, " ") != want {
		t.Errorf("got questions %q, want %q", asked, want)
	}
	if out.String() != "an answer\nan answer\n" {
		t.Errorf("got answers %q", out.String())
	}
	for _, want := range []string{"planner -> solver: why?", "second?", "(the reference answer: two)", "must be a number from 1 to 2", "no such word", "there is no /what: /ask N"} {
		if !strings.Contains(notes.String(), want) {
			t.Errorf("got notes %s, want %q in them", notes.String(), want)
		}
	}
}

// TestTeamInterrupted: an interrupt ends the current question, and the session continues.
func TestTeamInterrupted(t *testing.T) {
	var out, notes strings.Builder
	interrupts := make(chan os.Signal)
	terminal := Terminal{In: strings.NewReader("long\nshort\n"), Interrupts: interrupts, Out: &out, Notes: &notes}
	team := Team{Terminal: terminal, Ask: func(ctx context.Context, question string, _ func(string)) (string, error) {
		if question == "short" {
			return "done", nil
		}
		interrupts <- os.Interrupt
		<-ctx.Done()
		return "", ctx.Err()
	}}
	if err := team.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != "done\n" || notes.String() != "(cut short)\n" {
		t.Errorf("got output %q and notes %q", out.String(), notes.String())
	}
}
