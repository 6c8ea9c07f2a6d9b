package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Sequences for a terminal. The alternate screen preserves the terminal's content.
const (
	screenBegin = "\x1b[?1049h\x1b[?25l"
	screenEnd   = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineEnd     = "\x1b[K\n"
	screenRest  = "\x1b[J"
)

const watchEvery = 2 * time.Second

// watchStatus draws a status on the terminal until the context ends, which is not an error.
func watchStatus(ctx context.Context, read func(context.Context) (*store.Status, error)) error {
	out := int(os.Stdout.Fd())
	if !term.IsTerminal(out) {
		return errors.New("--watch draws on a terminal, but the output is not one; without --watch the status is printed once")
	}
	fmt.Print(screenBegin)
	defer fmt.Print(screenEnd)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		s, err := read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		_, rows, failed := term.GetSize(out)
		if failed != nil || rows == 0 { // unknown
			rows = math.MaxInt
		}
		if err := drawStatus(os.Stdout, s, err, rows); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// drawStatus replaces the content of a terminal with `rows` rows by a status, or by the reason why no status is available.
func drawStatus(w io.Writer, s *store.Status, why error, rows int) error {
	var text strings.Builder
	if why != nil {
		wrap(&text, "", why.Error())
	} else if err := printStatus(&text, s); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	var b bytes.Buffer
	b.WriteString(screenHome)
	for _, line := range lines[:min(len(lines), max(rows-1, 1))] { // a newline on the last row would scroll
		b.WriteString(line + lineEnd)
	}
	b.WriteString(screenRest)
	_, err := w.Write(b.Bytes())
	return err
}
