package agent

import (
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

var loaded sync.Map // folder -> *tokenizer.Tokenizer, which takes seconds to load and does not change

// loadTokenizer reads a golden tokenizer's folder, in which files may be compressed with gzip.
func loadTokenizer(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	if tok, ok := loaded.Load(dir); ok {
		return tok.(*tokenizer.Tokenizer)
	}
	files := map[string][]byte{}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			data, err = readGzip(filepath.Join(dir, name+".gz"))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
	}
	tok, err := tokenizer.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	loaded.Store(dir, tok)
	return tok
}

func readGzip(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

func goldenTokenizer(t testing.TB, name string) *tokenizer.Tokenizer {
	t.Helper()
	return loadTokenizer(t, golden.File(t, "tokenizer", name))
}

// eachTokenizer runs f for every tokenizer among the goldens that has a chat template.
func eachTokenizer(t *testing.T, f func(t *testing.T, dir string, tok *tokenizer.Tokenizer)) {
	root := golden.Dir(t, "tokenizer")
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			dir := filepath.Join(root, e.Name())
			if tok := loadTokenizer(t, dir); tok.HasTemplate() {
				f(t, dir, tok)
			}
		})
	}
}
