// Package tail keeps the end of what a program writes, which says why it failed.
package tail

import (
	"bytes"
	"strings"
	"sync"
)

// Writer keeps the last Max bytes that were written to it. Several goroutines may use it.
type Writer struct {
	Max int

	mu   sync.Mutex
	kept []byte // at most twice Max
	cut  bool   // something was dropped before kept
}

// Write never fails.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = append(w.kept, p...)
	if over := len(w.kept) - w.Max; over > w.Max {
		w.kept, w.cut = append([]byte(nil), w.kept[over:]...), true
	}
	return len(p), nil
}

// end is what is kept, and whether something came before it.
func (w *Writer) end() ([]byte, bool) {
	over := len(w.kept) - w.Max
	return w.kept[max(over, 0):], w.cut || over > 0
}

// Bytes are the last Max bytes.
func (w *Writer) Bytes() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	end, _ := w.end()
	return bytes.Clone(end)
}

// String is the last Max bytes, with U+FFFD for what is not UTF-8.
func (w *Writer) String() string { return strings.ToValidUTF8(string(w.Bytes()), "\uFFFD") }

// Lines is like String, without a line of which the beginning was dropped.
func (w *Writer) Lines() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	end, cut := w.end()
	if cut {
		_, end, _ = bytes.Cut(end, []byte("\n"))
	}
	return strings.ToValidUTF8(string(end), "\uFFFD")
}
