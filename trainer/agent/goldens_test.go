package agent

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

var loaded sync.Map // folder -> *tokenizer.Tokenizer, which takes seconds to load and does not change

// loadTokenizer reads a golden tokenizer's folder.
func loadTokenizer(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	if tok, ok := loaded.Load(dir); ok {
		return tok.(*tokenizer.Tokenizer)
	}
	tok, err := tokenizer.Parse(golden.Folder(t, dir, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	loaded.Store(dir, tok)
	return tok
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
