package chat

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Team is a person's conversation with a team of agents. Each line is a separate question.
type Team struct {
	Terminal
	// Ask returns the team's answer. It calls tell with the messages between the agents.
	Ask         func(ctx context.Context, question string, tell func(string)) (answer string, err error)
	BindHeldOut func(n int) task.Query // held-out question n of the task, 0 <= n < Questions
	Questions   int
}

const teamHelp = "/ask N asks held-out question N, counted from 1; /exit or Ctrl-D ends, Ctrl-C cuts an answer short; every line is a separate question"

// Run reads one question a line until the end of the input, /exit, or the end of ctx.
func (t *Team) Run(ctx context.Context) error {
	if t.Prompt != "" {
		fmt.Fprintln(t.Notes, "("+teamHelp+")")
	}
	return t.run(ctx, teamHelp, t.take)
}

func (t *Team) take(ctx context.Context, line string) (known bool, err error) {
	command, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch {
	case command == "/ask":
		n, err := strconv.Atoi(strings.TrimSpace(argument))
		if err != nil || n < 1 || n > t.Questions {
			fmt.Fprintf(t.Notes, "(/ask N: N must be a number from 1 to %d, the number of held-out questions)\n", t.Questions)
			return true, nil
		}
		q := t.BindHeldOut(n - 1)
		fmt.Fprintln(t.Notes, q.Text)
		err = t.answer(ctx, q.Text)
		fmt.Fprintf(t.Notes, "(the reference answer: %s)\n", q.Answer)
		return true, err
	case command == "/reset":
		fmt.Fprintln(t.Notes, "(there is nothing to reset: every line is a separate question)")
		return true, nil
	case strings.HasPrefix(command, "/"):
		return false, nil
	}
	return true, t.answer(ctx, line)
}

// answer prints the team's answer. If the team cannot answer, that is a note, and the session continues.
func (t *Team) answer(ctx context.Context, question string) error {
	answer, err := t.Ask(ctx, question, func(text string) { fmt.Fprintln(t.Notes, text) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		fmt.Fprintf(t.Notes, "(the team cannot answer: %v)\n", err)
	default:
		fmt.Fprintln(t.Out, answer)
	}
	return nil
}
