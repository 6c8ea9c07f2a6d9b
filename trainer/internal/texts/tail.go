package texts

import (
	"bytes"
	"strings"
	"sync"
)

// Tail keeps the last Max bytes that were written to it, such as the end of a program's output, which usually contains the reason for a
// failure. Several goroutines may use it.
type Tail struct {
	Max int

	mu   sync.Mutex
	kept []byte // at most twice Max bytes
	cut  bool   // bytes before kept were dropped
}

// Write keeps the end of p. It never fails.
func (w *Tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = append(w.kept, p...)
	if over := len(w.kept) - w.Max; over > w.Max {
		w.kept, w.cut = append([]byte(nil), w.kept[over:]...), true
	}
	return len(p), nil
}

// end returns the kept bytes, and whether earlier bytes were dropped.
func (w *Tail) end() ([]byte, bool) {
	over := len(w.kept) - w.Max
	return w.kept[max(over, 0):], w.cut || over > 0
}

// Bytes returns the last Max bytes.
func (w *Tail) Bytes() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	end, _ := w.end()
	return bytes.Clone(end)
}

// String returns the last Max bytes. Bytes that are not UTF-8 become U+FFFD.
func (w *Tail) String() string { return strings.ToValidUTF8(string(w.Bytes()), "\uFFFD") }

// Lines returns the same as String, without a first line whose beginning was dropped.
func (w *Tail) Lines() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	end, cut := w.end()
	if cut {
		_, end, _ = bytes.Cut(end, []byte("\n"))
	}
	return strings.ToValidUTF8(string(end), "\uFFFD")
}

// LastLine returns the last line of a text that is not blank, which usually states why a program failed.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
