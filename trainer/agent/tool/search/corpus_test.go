package search

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

const testCorpus = `{"title": "Ada Lovelace", "text": "Ada wrote the first program for the Analytical Engine."}
{"title": "Charles Babbage", "text": "Babbage designed the Analytical Engine.\n\nHe was born in London."}

{"text": "An entry without a title, about émigrés and 東京."}
`

func writeCorpus(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "corpus.jsonl")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newTestSearch(t *testing.T, cfg CorpusOptions) *Corpus {
	t.Helper()
	s, err := NewCorpus(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func checkTestSearch(t *testing.T, s *Corpus) {
	t.Helper()
	for query, want := range map[string]string{
		"Lovelace program": "[1] Ada Lovelace\nAda wrote the first program for the Analytical Engine.",
		"london":           "[1] Charles Babbage\nBabbage designed the Analytical Engine.\n\nHe was born in London.",
		"émigrés":          "[1] \nAn entry without a title, about émigrés and 東京.",
		"nowhere":          "nothing found",
		`+author:/q.*/ "`:  "nothing found",
		"":                 "error: the query is empty",
	} {
		if got := tooltest.CallText(t, s, "query", query); got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}
	if got := tooltest.CallText(t, s, "query", "Analytical Engine"); strings.Count(got, "Analytical") != 2 || !strings.Contains(got, "[2]") {
		t.Errorf("got %q, want two passages", got)
	}
}

func TestSearch(t *testing.T) {
	checkTestSearch(t, newTestSearch(t, CorpusOptions{Corpus: writeCorpus(t, testCorpus), Results: 3}))
}

func TestSearchResults(t *testing.T) {
	s := newTestSearch(t, CorpusOptions{Corpus: writeCorpus(t, strings.Repeat(`{"text": "same words"}`+"\n", 20)), Results: 2})
	first := tooltest.CallText(t, s, "query", "words")
	if strings.Count(first, "same words") != 2 {
		t.Errorf("got %q, want 2 results", first)
	}
}

func TestSearchMarkdown(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a.md":        "intro\n\n# Rivers\n\nThe Danube is long.",
		"sub/b.md":    "no heading, mountains here",
		"ignored.txt": "Danube Danube",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	blob := filepath.Join(t.TempDir(), "blob")
	if err := errors.Join(os.Rename(filepath.Join(dir, "sub/b.md"), blob), os.Symlink(blob, filepath.Join(dir, "sub/b.md"))); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(t.TempDir(), "current")
	if err := os.Symlink(dir, linked); err != nil {
		t.Fatal(err)
	}
	for _, corpus := range []string{dir, linked, dir + "/"} {
		s := newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 5})
		if got, want := tooltest.CallText(t, s, "query", "danube"), "[1] Rivers\nintro\n\n# Rivers\n\nThe Danube is long."; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if got := tooltest.CallText(t, s, "query", "mountains"); !strings.HasPrefix(got, "[1] b\n") {
			t.Errorf("got %q", got)
		}
	}
}

func TestSearchBadCorpus(t *testing.T) {
	for name, tc := range map[string]struct{ content, want string }{
		"not JSON": {"{\"text\": \"a\"}\n{", "line 2"},
		"no text":  {`{"title": "a"}`, `no "text"`},
		"a list":   {`[{"title": "a", "text": "b"}]`, `a corpus has lines`},
		"empty":    {"\n", "it has no text"},
		"blank":    {`{"title": "a", "text": " "}`, "it has no text"},
		"number":   {`{"text": 1}`, "line 1"},
		"latin-1":  {"{\"text\": \"a\"}\n{\"text\": \"caf\xe9\"}", "line 2: not UTF-8"},
	} {
		_, err := NewCorpus(t.Context(), CorpusOptions{Corpus: writeCorpus(t, tc.content), Results: 1})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want %q", name, err, tc.want)
		}
	}
	if _, err := NewCorpus(t.Context(), CorpusOptions{Corpus: t.TempDir(), Results: 1}); err == nil {
		t.Error("an empty folder was accepted as a corpus")
	}
	if _, err := NewCorpus(t.Context(), CorpusOptions{Corpus: "/no/such/file", Results: 1}); err == nil {
		t.Error("a missing file was accepted as a corpus")
	}
}

func TestPassages(t *testing.T) {
	long := strings.Repeat("wörter ", 1000)
	for _, text := range []string{"", "one", "one\n\ntwo", long, strings.Repeat("é", 5000), strings.Repeat("p\n\n", 2000)} {
		var joined strings.Builder
		for _, p := range passages(text) {
			if len(p) > passageMaximum+2 || p == "" {
				t.Errorf("got a passage of %d bytes", len(p))
			}
			joined.WriteString(p)
		}
		strip := func(s string) string { return strings.Join(strings.Fields(s), "") }
		if strip(joined.String()) != strip(text) {
			t.Errorf("the passages of %.20q lack some of its text", text)
		}
	}
}

// TestCorpusMarks: a byte order mark at the beginning of a corpus is ignored.
func TestCorpusMarks(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.jsonl": "\ufeff{\"title\":\"T\",\"text\":\"zebra\"}\r\n\r\n", "md/a.md": "\ufeff# T\n\nzebra"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(name) == ".md" {
			path = filepath.Dir(path)
		}
		var got []document
		if err := readCorpus(path, func(d document) error { got = append(got, d); return nil }); err != nil || len(got) != 1 || got[0].title != "T" || strings.Contains(got[0].text, "\ufeff") {
			t.Errorf("%s: got %+v, error %v", name, got, err)
		}
	}
}
