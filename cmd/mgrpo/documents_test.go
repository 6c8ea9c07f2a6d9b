package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestDocumentsNameCommands checks that mgrpo has the commands and flags in the inline code of Markdown files. CHANGELOG.md also names
// removed ones.
func TestDocumentsNameCommands(t *testing.T) {
	inline := regexp.MustCompile("`(?:watch )?(?:bin/)?mgrpo ([^`]+)`")
	found := 0
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md", "*/*/*/*.md"} {
		files, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasPrefix(file, filepath.Join("..", "..", "build")) || filepath.Base(file) == "CHANGELOG.md" {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
				found++
				parsed, err := kong.Trace(newParser(&cli{}), strings.Fields(m[1]))
				if err == nil {
					err = parsed.Error
				}
				// A document may name a flag without its value.
				if err != nil && !strings.Contains(err.Error(), `but got "EOL"`) {
					t.Errorf("%s: mgrpo %s: %v", file, m[1], err)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("%d commands: the pattern no longer finds them", found)
	}
}
