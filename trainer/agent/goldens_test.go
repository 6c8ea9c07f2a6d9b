package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/tokenizertest"
)

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
			if tok := tokenizertest.Load(t, dir); tok.HasTemplate() {
				f(t, dir, tok)
			}
		})
	}
}
