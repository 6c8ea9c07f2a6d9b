package texts

import (
	"strings"
	"testing"
)

// However the text is cut into writes, the end of it is kept.
func TestTail(t *testing.T) {
	text := "one\ntwo\nthree\nfour"
	for size := 1; size <= len(text); size++ {
		w := &Tail{Max: 9}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			if wrote, err := w.Write([]byte(rest[:n])); wrote != n || err != nil {
				t.Fatal(wrote, err)
			}
			rest = rest[n:]
		}
		if got := w.String(); got != "hree\nfour" {
			t.Errorf("writes of %d bytes: %q", size, got)
		}
		if got := w.Lines(); got != "four" {
			t.Errorf("writes of %d bytes: lines %q", size, got)
		}
	}
}

func TestShortTail(t *testing.T) {
	w := &Tail{Max: 9}
	if w.String() != "" || w.Lines() != "" {
		t.Error("text before anything was written")
	}
	w.Write([]byte("one\ntwo\xff"))
	if want := "one\ntwo\uFFFD"; w.String() != want || w.Lines() != want {
		t.Errorf("%q, %q", w.String(), w.Lines())
	}
}

// The tail keeps at most twice Max bytes.
func TestTailIsBounded(t *testing.T) {
	w := &Tail{Max: 100}
	for range 1000 {
		w.Write([]byte(strings.Repeat("x", 30)))
		if len(w.kept) > 2*w.Max {
			t.Fatalf("%d bytes are kept", len(w.kept))
		}
	}
}

// TestLinesOfALongText writes more at once than the tail keeps, so the beginning of the first line is lost.
func TestLinesOfALongText(t *testing.T) {
	w := &Tail{Max: 9}
	w.Write([]byte(strings.Repeat("x", 100) + "\nlast"))
	if got := w.Lines(); got != "last" {
		t.Errorf("%q", got)
	}
}
