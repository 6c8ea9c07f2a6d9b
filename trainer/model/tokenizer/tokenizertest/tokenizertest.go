// Package tokenizertest loads the golden tokenizers for tests.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package tokenizertest

import (
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// loaded keeps tokenizers between tests: loading one takes a good part of a second, and they do not change.
var loaded sync.Map // by folder

// Golden returns a golden tokenizer by its name, such as "qwen3".
func Golden(t testing.TB, name string) *tokenizer.Tokenizer {
	t.Helper()
	return Load(t, golden.File(t, "tokenizer", name))
}

// Load returns the tokenizer of a folder of the goldens.
func Load(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	if tok, ok := loaded.Load(dir); ok {
		return tok.(*tokenizer.Tokenizer)
	}
	tok := parse(t, files(t, dir))
	loaded.Store(dir, tok)
	return tok
}

// WithTemplate returns a golden tokenizer with another chat template.
func WithTemplate(t testing.TB, name, jinja string) *tokenizer.Tokenizer {
	t.Helper()
	changed := files(t, golden.File(t, "tokenizer", name))
	changed["chat_template.jinja"] = []byte(jinja)
	return parse(t, changed)
}

func files(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	return golden.Folder(t, dir, "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
}

func parse(t testing.TB, files map[string][]byte) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
