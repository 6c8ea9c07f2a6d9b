package texts

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func TestMarks(t *testing.T) {
	for text, want := range map[string]string{
		"\ufeffYou are brief.\n": "You are brief.\n", "plain": "plain", "": "", "\ufeff": "", "a\ufeffb": "a\ufeffb", "\ufeff\ufeffa": "\ufeffa", "é": "é", "\xef": "\xef",
	} {
		for name, in := range map[string]io.Reader{"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
			if got, err := io.ReadAll(NewReader(in)); err != nil || string(got) != want {
				t.Errorf("%q, %s: %q, %v", text, name, got, err)
			}
		}
		if got := Normalize([]byte(text)); string(got) != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := string(Normalize([]byte("a\r\nb\rc\n"))); got != "a\nb\rc\n" {
		t.Errorf("line ends: %q", got)
	}
	for in := range 2 { // also at a second look
		r := NewReader(strings.NewReader("\xff\xfea\x00"))
		if in == 1 {
			_, _ = r.Read(make([]byte, 9))
		}
		if _, err := io.ReadAll(r); err == nil || !strings.Contains(err.Error(), "save it as UTF-8") {
			t.Error(err)
		}
	}
}

func TestFetched(t *testing.T) {
	for content, fetched := range map[string]bool{"": true, "{}": true, "version: 1": true, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n": false} {
		if err := Fetched([]byte(content)); (err == nil) != fetched {
			t.Errorf("%q: %v", content, err)
		}
	}
}

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prompt.txt")
	for text, want := range map[string]string{
		"\ufeffYou are\r\nbrief.\r\n": "You are\nbrief.\n", "a\rb": "a\rb", "\xff\xfea\x00": "error: UTF-16", "\xfe\xff\x00a": "error: UTF-16", "caf\xe9": "error: not UTF-8",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFile(path)
		if reason, fails := strings.CutPrefix(want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), reason) {
				t.Errorf("%q: %v", text, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
