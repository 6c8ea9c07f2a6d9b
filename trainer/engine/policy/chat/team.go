package chat

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Team is a person's conversation with a team of agents. Each line is a separate question.
type Team struct {
	// Ask returns the team's answer. It calls tell with the messages between the agents.
	Ask func(ctx context.Context, question string, tell func(string)) (answer string, err error)
	// HeldOut returns held-out question n of the team's task, 0 <= n < Questions, and the reference answer.
	HeldOut   func(n int) (question, reference string)
	Questions int

	Prompt string // as in Lines
	Out    io.Writer
	Notes  io.Writer // messages between the agents, and messages about the session
}

const teamHelp = "/ask N asks held-out question N, counted from 1; /exit or Ctrl-D ends, Ctrl-C cuts an answer short; every line is a separate question"

// Run reads one question a line from in until the end of in, /exit, or the end of ctx. A value
// on interrupts ends the question that is being answered.
func (t *Team) Run(ctx context.Context, in io.Reader, interrupts <-chan os.Signal) error {
	if t.Prompt != "" {
		fmt.Fprintln(t.Notes, "("+teamHelp+")")
	}
	l := Lines{Prompt: t.Prompt, Out: t.Out, Notes: t.Notes, Help: teamHelp}
	return l.Run(ctx, in, interrupts, func(ctx context.Context, line string) (bool, error) { return t.take(ctx, line, interrupts) })
}

func (t *Team) take(ctx context.Context, line string, interrupts <-chan os.Signal) (known bool, err error) {
	command, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch {
	case command == "/ask":
		n, err := strconv.Atoi(strings.TrimSpace(argument))
		if err != nil || n < 1 || n > t.Questions {
			fmt.Fprintf(t.Notes, "(/ask N: N must be a number from 1 to %d, the number of held-out questions)\n", t.Questions)
			return true, nil
		}
		question, reference := t.HeldOut(n - 1)
		fmt.Fprintln(t.Notes, question)
		if err := t.answer(ctx, question, interrupts); err != nil {
			return true, err
		}
		fmt.Fprintf(t.Notes, "(the reference answer: %s)\n", reference)
		return true, nil
	case command == "/reset":
		fmt.Fprintln(t.Notes, "(there is nothing to reset: every line is a separate question)")
		return true, nil
	case strings.HasPrefix(command, "/"):
		return false, nil
	}
	return true, t.answer(ctx, line, interrupts)
}

// answer prints the team's answer. An error of one question does not end the session.
func (t *Team) answer(ctx context.Context, question string, interrupts <-chan os.Signal) error {
	asking, cut := context.WithCancel(ctx)
	defer cut()
	done := make(chan struct{})
	var answer string
	var err error
	go func() {
		defer close(done)
		answer, err = t.Ask(asking, question, func(text string) { fmt.Fprintln(t.Notes, text) })
	}()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-interrupts:
			cut()
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case asking.Err() != nil:
		fmt.Fprintln(t.Notes, "(cut short)")
	case err != nil:
		fmt.Fprintf(t.Notes, "(the team cannot answer: %v)\n", err)
	default:
		fmt.Fprintln(t.Out, answer)
	}
	return nil
}
