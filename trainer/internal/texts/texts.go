// Package texts reads texts of people, files and programs, and shortens them for messages. The texts are UTF-8, with or without the
// byte order mark that some editors put before them.
package texts

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// byteOrderMark is the byte order mark of UTF-8.
const byteOrderMark = "\ufeff"

// errUTF16 is the error for a text that begins with a byte order mark of UTF-16 or UTF-32.
var errUTF16 = errors.New("the text is UTF-16: save it as UTF-8")

// Normalize returns a text without its byte order mark and with line feeds as line ends. It does not detect encodings other than UTF-8.
func Normalize(text []byte) []byte {
	text = bytes.TrimPrefix(text, []byte(byteOrderMark))
	if crlf := []byte("\r\n"); bytes.Contains(text, crlf) { // ReplaceAll would copy every text
		text = bytes.ReplaceAll(text, crlf, []byte("\n"))
	}
	return text
}

// ReadFile returns the text of a file, without a byte order mark and with line feeds as line ends, as Python's open does. It
// returns an error if the file is not UTF-8.
func ReadFile(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if inUTF16(raw) {
		return "", fmt.Errorf("%s: %w", path, errUTF16)
	}
	if !utf8.Valid(raw) {
		return "", fmt.Errorf("%s: the text is not UTF-8", path)
	}
	return string(Normalize(raw)), nil
}

// Fetched returns an error if the content of a file is a pointer of Git LFS, which a clone without Git LFS has in place of a large file.
func Fetched(content []byte) error {
	if bytes.HasPrefix(content, []byte(lfsPointer)) {
		return errors.New("this is a pointer of Git LFS, not the file itself: run git lfs pull in its folder, or download the file again")
	}
	return nil
}

// lfsPointer is the beginning of a pointer of Git LFS.
const lfsPointer = "version https://git-lfs.github.com/spec/"

func inUTF16(text []byte) bool {
	return bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff"))
}

// NewReader returns a reader of r without a byte order mark. Reading text in UTF-16 is an error. Nothing is read before the first Read.
func NewReader(r io.Reader) io.Reader { return &reader{in: bufio.NewReader(r)} }

type reader struct {
	in      *bufio.Reader
	started bool
}

func (r *reader) Read(p []byte) (int, error) {
	if !r.started {
		first, err := r.in.Peek(1)
		if err == nil && (first[0] == byteOrderMark[0] || first[0] >= 0xfe) { // a terminal gives no more than a line at a time
			head, _ := r.in.Peek(len(byteOrderMark))
			switch {
			case inUTF16(head): // again at each Read, because a caller may ignore the error of a look ahead
				return 0, errUTF16
			case string(head) == byteOrderMark:
				_, _ = r.in.Discard(len(byteOrderMark))
			}
		}
		r.started = true
	}
	return r.in.Read(p)
}
