package chat

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Terminal is where a person writes lines and reads answers.
type Terminal struct {
	In         io.Reader
	Interrupts <-chan os.Signal // may be nil
	Prompt     string           // printed before each line, such as "> "; "" if In is not a terminal
	Out        io.Writer        // answers
	Notes      io.Writer        // messages about the session, such as a cut answer, and messages between agents
}

// run calls take with each line that is not blank, until the end of t.In, /exit, or the end of ctx. take reports whether
// it recognises the line. For a command that it does not recognise, run prints help, the list of commands. An interrupt
// ends the context of take; between two lines, run prints help.
func (t Terminal) run(ctx context.Context, help string, take func(ctx context.Context, line string) (known bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines, ended := readLines(ctx, t.In)
	for {
		fmt.Fprint(t.Out, t.Prompt)
		select {
		case line, ok := <-lines:
			command := strings.TrimSpace(line)
			switch {
			case !ok:
				return <-ended
			case command == "":
				continue
			case command == "/exit":
				return nil
			}
			var known bool
			err := t.interruptible(ctx, func(ctx context.Context) (err error) {
				known, err = take(ctx, line)
				return err
			})
			if err != nil {
				return err
			}
			if !known {
				fmt.Fprintf(t.Notes, "(there is no %s: %s)\n", command, help)
			}
		case <-t.Interrupts:
			fmt.Fprintln(t.Notes, "\n("+help+")")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// interruptible calls f with a context that ends with an interrupt. The error of f after an interrupt is only a note.
func (t Terminal) interruptible(parent context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	done := make(chan error)
	go func() { done <- f(ctx) }()
	for {
		select {
		case err := <-done:
			if err == nil || ctx.Err() == nil || parent.Err() != nil {
				return err
			}
			fmt.Fprintln(t.Notes, "(cut short)")
			return nil
		case <-t.Interrupts:
			cancel()
		}
	}
}

// maxMessage is the size of the longest message, in bytes.
const maxMessage = 1 << 20

// readLines sends the lines of r, then the read error (nil at the end of r). It ends when ctx ends, except while it is
// blocked in Read.
func readLines(ctx context.Context, r io.Reader) (<-chan string, <-chan error) {
	lines, ended := make(chan string), make(chan error, 1)
	go func() {
		defer close(lines)
		in := bufio.NewScanner(r)
		in.Buffer(nil, maxMessage)
		for in.Scan() {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
		err := in.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a message is longer than %d MiB", maxMessage>>20)
		}
		ended <- err
	}()
	return lines, ended
}
