package chat

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestTeam: each line is a question to the team. A held-out question is printed with its
// reference answer. An error ends a question, and the session continues.
func TestTeam(t *testing.T) {
	var out, notes strings.Builder
	var asked []string
	team := Team{Out: &out, Notes: &notes, Questions: 2,
		HeldOut: func(n int) (string, string) { return []string{"first?", "second?"}[n], "two" },
		Ask: func(_ context.Context, question string, tell func(string)) (string, error) {
			asked = append(asked, question)
			if question == "fail" {
				return "", errors.New("no such word")
			}
			tell("planner -> solver: " + question)
			return "an answer", nil
		}}
	in := strings.NewReader("why?\n/ask 2\n/ask 3\nfail\n/what\n\n/exit\nnever\n")
	if err := team.Run(t.Context(), in, nil); err != nil {
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
	team := Team{Out: &out, Notes: &notes, Ask: func(ctx context.Context, question string, _ func(string)) (string, error) {
		if question == "short" {
			return "done", nil
		}
		interrupts <- os.Interrupt
		<-ctx.Done()
		return "", ctx.Err()
	}}
	if err := team.Run(t.Context(), strings.NewReader("long\nshort\n"), interrupts); err != nil {
		t.Fatal(err)
	}
	if out.String() != "done\n" || notes.String() != "(cut short)\n" {
		t.Errorf("got output %q and notes %q", out.String(), notes.String())
	}
}
