package tool

import (
	"bytes"
	"sync"
)

// tail keeps the last bytes written to it, such as the last error messages of a program.
type tail struct {
	mu  sync.Mutex
	b   []byte
	cut bool // b begins in the middle of a line
}

func (t *tail) Write(p []byte) (int, error) {
	const keep = 4 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if more := len(t.b) - keep; more > 0 {
		t.b, t.cut = append(t.b[:0], t.b[more:]...), true
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cut { // drop the cut line: redact would not recognise half a secret
		_, whole, _ := bytes.Cut(t.b, []byte("\n"))
		return string(whole)
	}
	return string(t.b)
}
