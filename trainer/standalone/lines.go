package standalone

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// maxLine is the size of the longest line that is read, in bytes.
const maxLine = 64 << 20

// Tally counts the lines of an input and the lines that failed.
type Tally struct {
	Lines, Failed int
	First         error // error of the first failed line
}

// Err returns an error if a line failed.
func (t Tally) Err() error {
	if t.Failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d lines failed, the first: %w", t.Failed, t.Lines, t.First)
}

// input is one line: its number, counted from 1, and its bytes or the error of reading it.
type input struct {
	number int
	data   []byte
	err    error
}

// readLines sends the lines of r that are not blank, then the read error (nil at the end of r) on the second channel.
// It ends when ctx ends, except while it is blocked in Read.
func readLines(ctx context.Context, r io.Reader, ahead int) (<-chan input, <-chan error) {
	lines, ended := make(chan input, ahead), make(chan error, 1)
	go func() {
		defer close(lines)
		buf := bufio.NewReaderSize(texts.NewReader(r), 1<<16)
		for n := 1; ; n++ {
			data, long, err := readLine(buf)
			in := input{number: n, data: data}
			if long {
				in.err = fmt.Errorf("longer than %d MiB", maxLine>>20)
			}
			if long || len(bytes.TrimSpace(data)) > 0 {
				select {
				case lines <- in:
				case <-ctx.Done():
					ended <- ctx.Err()
					return
				}
			}
			if errors.Is(err, io.EOF) {
				ended <- nil
				return
			}
			if err != nil {
				ended <- fmt.Errorf("reading line %d: %w", n, err)
				return
			}
		}
	}()
	return lines, ended
}

// receive takes the next line; ok is false at the end of the input or of ctx.
func receive(ctx context.Context, lines <-chan input) (in input, ok bool) {
	select {
	case in, ok = <-lines:
		return in, ok
	case <-ctx.Done():
		return in, false
	}
}

// readLine reads up to a newline. It skips a line that is too long and returns no bytes of it.
func readLine(r *bufio.Reader) (line []byte, long bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if long = long || len(line)+len(part) > maxLine; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, long, err
		}
	}
}

// output writes replies.
type output struct {
	buf   *bufio.Writer
	enc   *json.Encoder
	tally Tally
}

func newOutput(w io.Writer) *output {
	o := &output{buf: bufio.NewWriterSize(w, 1<<16)}
	o.enc = json.NewEncoder(o.buf)
	o.enc.SetEscapeHTML(false)
	return o
}

// failure is the reply to a line that was refused.
type failure struct {
	ID    json.RawMessage `json:"id,omitempty"`
	Error string          `json:"error"`
}

// write writes the reply to a line, or err if there is no reply.
func (o *output) write(line int, id json.RawMessage, reply any, err error) error {
	o.tally.Lines++
	if err != nil {
		err = fmt.Errorf("line %d: %w", line, err)
		if o.tally.Failed++; o.tally.Failed == 1 {
			o.tally.First = err
		}
		reply = failure{ID: id, Error: err.Error()}
	}
	if err := o.enc.Encode(reply); err != nil {
		return fmt.Errorf("writing the answer to line %d: %w", line, err)
	}
	return nil
}
