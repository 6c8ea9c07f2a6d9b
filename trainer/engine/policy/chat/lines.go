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

// Lines reads the lines that a person writes.
type Lines struct {
	Prompt string // printed before each line, such as "> "; "" if the input is not a terminal
	Out    io.Writer
	Notes  io.Writer
	Help   string // the commands
}

// Run calls take with each line of in that is not blank, until the end of in, /exit, or the end of ctx. take reports
// whether it recognises the line. For a command that it does not recognise, and for a value on interrupts between two
// lines, Run prints the help.
func (l Lines) Run(ctx context.Context, in io.Reader, interrupts <-chan os.Signal, take func(ctx context.Context, line string) (known bool, err error)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lines, ended := readLines(ctx, in)
	for {
		fmt.Fprint(l.Out, l.Prompt)
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
			known, err := take(ctx, line)
			if err != nil {
				return err
			}
			if !known {
				fmt.Fprintf(l.Notes, "(there is no %s: %s)\n", command, l.Help)
			}
		case <-interrupts:
			fmt.Fprintln(l.Notes, "\n("+l.Help+")")
		case <-ctx.Done():
			return ctx.Err()
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
