package search

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// rowsOfTables writes the first rows of the corpus of testdata/tables: many passages that differ only in a number, and
// many equally good ones.
func rowsOfTables(t *testing.T, rows int) (corpus string, queries []string) {
	t.Helper()
	f, err := os.Open("../../../../testdata/tables/corpus.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var text strings.Builder
	for lines := bufio.NewScanner(f); rows > 0 && lines.Scan(); rows-- {
		text.WriteString(lines.Text() + "\n")
		var row struct{ Title, Text string }
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		if rows%37 == 0 {
			queries = append(queries, row.Title, row.Text[:len(row.Text)/2], "Year "+strings.Fields(row.Title)[0])
		}
	}
	return writeCorpus(t, text.String()), queries
}

// TestIndexAnswersAlike: an index on the disk gives the same answers as an index in memory,
// also when it is opened again, and also if several passages are equally good.
func TestIndexAnswersAlike(t *testing.T) {
	corpus, queries := rowsOfTables(t, 2000)
	dir := filepath.Join(t.TempDir(), "a", "index")
	memory := newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 4})
	disk := newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 4, Index: dir})
	again := newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 4, Index: dir})
	found := 0
	for _, q := range queries {
		want := tooltest.CallText(t, memory, "query", q)
		found += strings.Count(want, "[4]")
		for name, s := range map[string]*Corpus{"built": disk, "opened": again} {
			if got := tooltest.CallText(t, s, "query", q); got != want {
				t.Errorf("%s, %q:\n%s\nwant\n%s", name, q, got, want)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d of %d queries find four passages", found, len(queries))
	}
	checkTestSearch(t, newTestSearch(t, CorpusOptions{Corpus: writeCorpus(t, testCorpus), Results: 3, Index: dir}))
}

// TestIndexOfCorpus: corpora with equal content share one index, which is built once. Another
// content, or another name of a file in a folder, has an index of its own.
func TestIndexOfCorpus(t *testing.T) {
	dir := t.TempDir()
	indexes := func(corpus string) (names []string) {
		newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 1, Index: dir})
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				info, err := os.Stat(filepath.Join(dir, e.Name(), indexManifest))
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, fmt.Sprint(e.Name(), info.ModTime()))
			}
		}
		return names
	}
	first := indexes(writeCorpus(t, testCorpus))
	if again := indexes(writeCorpus(t, testCorpus)); len(first) != 1 || fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("a copy of the corpus: got indexes %v, want %v", again, first)
	}
	if other := indexes(writeCorpus(t, testCorpus+"\n{\"text\": \"more\"}\n")); len(other) != 2 {
		t.Errorf("a second corpus: got indexes %v, want 2", other)
	}
	folder := t.TempDir()
	for i, name := range []string{"a.md", "b.md"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("same"), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := len(indexes(folder)); n != 3+i {
			t.Errorf("after adding %s: got %d indexes, want %d", name, n, 3+i)
		}
	}
	// The file's name is the title of its passages.
	if err := os.Rename(filepath.Join(folder, "b.md"), filepath.Join(folder, "c.md")); err != nil {
		t.Fatal(err)
	}
	if n := len(indexes(folder)); n != 5 {
		t.Errorf("after renaming a file: got %d indexes, want 5", n)
	}
}

const searchedEnv = "MGRPO_TEST_SEARCHED" // for TestIndexElsewhere: the folder of an index and the corpus, separated by a colon

// TestIndexMemory: the memory for building an index does not grow with the corpus, because passages are written to the disk in batches.
func TestIndexMemory(t *testing.T) {
	peak := func(documents int) uint64 {
		corpus := filepath.Join(t.TempDir(), "corpus.jsonl")
		random := rand.New(rand.NewPCG(1, uint64(documents)))
		var text strings.Builder
		for i := range documents {
			fmt.Fprintf(&text, `{"title": "Document %d", "text": "`, i)
			for range 60 {
				fmt.Fprintf(&text, "w%d ", random.IntN(5000))
			}
			text.WriteString("\"}\n")
		}
		if err := write(corpus, []byte(text.String())); err != nil {
			t.Fatal(err)
		}
		text.Reset()
		before := heapInUse()
		stop, most := make(chan struct{}), make(chan uint64)
		go func() {
			var highest uint64
			for {
				highest = max(highest, heapInUse())
				select {
				case <-stop:
					most <- highest
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		index, err := indexOnDisk{corpus, t.TempDir(), func(string) {}}.open(t.Context())
		close(stop)
		highest := <-most
		if err != nil {
			t.Fatal(err)
		}
		if err := index.Close(); err != nil {
			t.Fatal(err)
		}
		return highest - before
	}
	small, large := peak(2500), peak(10000)
	t.Logf("%d and %d bytes", small, large)
	if large > 2*small {
		t.Errorf("%d documents take %d bytes to index, %d take %d", 2500, small, 10000, large)
	}
}

// heapInUse returns the number of heap bytes in use after a garbage collection.
func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestIndexElsewhere runs in a process that TestIndexTogether starts.
func TestIndexElsewhere(t *testing.T) {
	dir, corpus, ok := strings.Cut(os.Getenv(searchedEnv), ":")
	if !ok {
		t.Skip("runs only as a process of TestIndexTogether")
	}
	fmt.Println(tooltest.CallText(t, newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 1, Index: dir}), "query", "London"))
}

// TestIndexTogether: concurrent callers, also in several processes, wait for the first to build the index, and then all read it.
func TestIndexTogether(t *testing.T) {
	corpus, dir := writeCorpus(t, testCorpus), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if i < 3 {
				c := exec.Command(self, "-test.run=^TestIndexElsewhere$")
				c.Env = append(os.Environ(), searchedEnv+"="+dir+":"+corpus)
				if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "[1] Charles Babbage") {
					t.Errorf("another process: %v\n%s", err, out)
				}
				return
			}
			s, err := NewCorpus(t.Context(), CorpusOptions{Corpus: corpus, Results: 3, Index: dir})
			if err != nil {
				t.Error(err)
				return
			}
			checkTestSearch(t, s)
			t.Cleanup(func() { s.Close() })
		})
	}
	wg.Wait()
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 2 { // the index and its lock
		t.Errorf("left %v, %v", left, err)
	}
}

// TestIndexBroken: partial files of a crash are removed. A corpus that cannot be read, and a caller that gives up, leave no files behind.
func TestIndexBroken(t *testing.T) {
	dir, corpus := t.TempDir(), writeCorpus(t, testCorpus)
	digest, err := corpusDigest(t.Context(), corpus)
	if err != nil {
		t.Fatal(err)
	}
	crashed := durable.PartialName(filepath.Join(dir, digest))
	if err := os.MkdirAll(filepath.Join(crashed, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx     context.Context
		content string
		want    string
	}{
		"bad JSON":  {t.Context(), testCorpus + "{", "line 5"},
		"no text":   {t.Context(), `{"text": " "}`, "no text"},
		"nothing":   {t.Context(), "", "no text"},
		"cancelled": {over, testCorpus, "canceled"},
	} {
		if _, err := NewCorpus(c.ctx, CorpusOptions{Corpus: writeCorpus(t, c.content), Results: 1, Index: dir}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 1, Index: dir})
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestIndexWaits: a caller that waits while another process builds the index can be cancelled.
// It gets a message with the reason for the wait.
func TestIndexWaits(t *testing.T) {
	dir, corpus := t.TempDir(), writeCorpus(t, testCorpus)
	digest, err := corpusDigest(t.Context(), corpus)
	if err != nil {
		t.Fatal(err)
	}
	k := indexOnDisk{corpus, dir, func(string) {}}
	unlock, err := k.lock(t.Context(), filepath.Join(dir, digest+".lock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	k.note = func(text string) {
		if !strings.Contains(text, "another process") || !strings.Contains(text, corpus) {
			t.Error(text)
		}
		cancel()
	}
	if _, err := k.open(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	unlock()
	newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 1, Index: dir})
}

// TestIndexDamage: a truncated, changed or missing file of an index is an error that names the file. bleve itself would not notice it.
func TestIndexDamage(t *testing.T) {
	corpus, dir := writeCorpus(t, testCorpus), t.TempDir()
	newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 1, Index: dir})
	digest, err := corpusDigest(t.Context(), corpus)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, digest)
	text, err := os.ReadFile(filepath.Join(folder, indexManifest))
	if err != nil {
		t.Fatal(err)
	}
	files, err := parseManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{indexManifest}, paths(files)...) {
		path := filepath.Join(folder, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := []byte(string(good))
		changed[len(changed)/2] ^= 1
		for what, bad := range map[string][]byte{"cut": good[:len(good)/2], "empty": {}, "changed": changed, "gone": nil} {
			if err := errors.Join(os.RemoveAll(path), write(path, bad)); err != nil {
				t.Fatal(err)
			}
			s, err := NewCorpus(t.Context(), CorpusOptions{Corpus: corpus, Results: 1, Index: dir})
			if err == nil || !strings.Contains(err.Error(), "damaged") || name != indexManifest && !strings.Contains(err.Error(), filepath.Base(name)) || !strings.Contains(err.Error(), folder) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if err == nil {
				s.Close()
			}
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(folder); err != nil { // the error advises this
		t.Fatal(err)
	}
	checkTestSearch(t, newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 3, Index: dir}))
}

// TestIndexCutWhileOpen: if a file of an open index is truncated, calls fail, and the process continues.
func TestIndexCutWhileOpen(t *testing.T) {
	corpus, queries := rowsOfTables(t, 2000)
	dir := t.TempDir()
	s := newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 3, Index: dir})
	segments, err := filepath.Glob(filepath.Join(dir, "*", "store", "*.zap"))
	if err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	if err := os.Truncate(segments[0], 100); err != nil {
		t.Fatal(err)
	}
	if _, err := tool.WithCallPolicy(s, tool.CallPolicy{}).Call(t.Context(), tooltest.Arg(t, "query", queries[0])); !errors.Is(err, tool.ErrFailed) || !strings.Contains(err.Error(), "crashed") {
		t.Errorf("%v", err)
	}
}

// write writes a file unless data is nil.
func write(path string, data []byte) error {
	if data == nil {
		return nil
	}
	return os.WriteFile(path, data, 0o600)
}

func paths(files []durable.File) (out []string) {
	for _, f := range files {
		out = append(out, f.Path)
	}
	return out
}

func FuzzIndexManifest(f *testing.F) {
	f.Add([]byte(`[{"path": "store/root.bolt", "size": 1, "sha256": "ab"}, {"path": "index_meta.json", "size": 2, "sha256": "cd"}]`))
	f.Add([]byte(`[{"path": "../../etc/passwd"}, {"path": "/etc/passwd"}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		files, err := parseManifest(text)
		if err != nil {
			return
		}
		if len(files) > maxIndexFiles {
			t.Errorf("%d files", len(files))
		}
		for _, file := range files {
			if path := filepath.Join("/index", file.Path); path != "/index" && !strings.HasPrefix(path, "/index/") {
				t.Errorf("%q leads to %s", file.Path, path)
			}
		}
	})
}
