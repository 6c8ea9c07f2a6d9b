package assemble

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// TestPromptFiles reads prompts as editors on other systems save them.
func TestPromptFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prompt.txt")
	a := &config.Agent{Name: "planner", Prompt: config.Path(path)}
	for text, want := range map[string]string{"\ufeffYou are brief.\r\n": "You are brief.\n", "You are brief.": "You are brief.", "\xff\xfeY\x00": "error"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := systemPrompt(&config.Config{}, a)
		if want == "error" {
			if err == nil || !strings.Contains(err.Error(), "agents.planner.prompt") {
				t.Errorf("%q: %q, %v", text, got, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
