package mcp

import (
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

func TestMCPSecrets(t *testing.T) {
	t.Setenv("MGRPO_TEST_KEY", "sk-9-of-ours")
	t.Setenv("MGRPO_TEST_TOKEN", "sk-5")
	t.Setenv("MGRPO_TEST_FLAG", "1")
	cfg := Options{URL: "https://host/mcp?key=sk-1", Env: []string{"MGRPO_TEST_KEY", "MGRPO_TEST_FLAG"}, TokenEnv: "MGRPO_TEST_TOKEN"}
	secrets := cfg.Secrets()
	for _, want := range []string{"sk-9-of-ours", "sk-5"} {
		if !slices.Contains(secrets, want) {
			t.Errorf("%v lacks %s", secrets, want)
		}
	}
	if strings.Contains(cfg.String(), "sk-1") {
		t.Error(cfg.String())
	}
	if got := tool.Redact("1 of 1", secrets); got != "1 of 1" {
		t.Errorf("a flag was redacted like a secret: %q", got)
	}
	_, err := Connect(t.Context(), Options{URL: "http://127.0.0.1:1/mcp?key=sk-1"})
	if err == nil || strings.Contains(err.Error(), "sk-1") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a server that does not run: got error %v", err)
	}
}

// TestMCPService: the cache distinguishes servers with the same command by their names. Their folder does not matter.
func TestMCPService(t *testing.T) {
	one, two := Options{Name: "letters", Command: []string{"./serve"}}, Options{Name: "numbers", Command: []string{"./serve"}}
	if one.Service() == two.Service() || one.Service() != (Options{Name: "letters", Command: []string{"./serve"}, Dir: "elsewhere"}).Service() {
		t.Errorf("got services %s and %s, want different ones", one.Service(), two.Service())
	}
}
