package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const commit = "12fd25f77366fa6b3b4b768ec3050bf629380bac"

// write makes a file and the folders around it.
func write(t *testing.T, text string, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func clearEnvironment(t *testing.T) {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
}

// The cache is where the documentation of huggingface_hub puts it; each variable here has priority over the ones before it.
func TestWhereTheCacheIs(t *testing.T) {
	clearEnvironment(t)
	for _, c := range []struct{ variable, below string }{
		{"HOME", ".cache/huggingface/hub"}, {"XDG_CACHE_HOME", "huggingface/hub"}, {"HF_HOME", "hub"}, {"HF_HUB_CACHE", ""},
	} {
		dir := t.TempDir()
		t.Setenv(c.variable, dir)
		cache := filepath.Join(dir, filepath.FromSlash(c.below))
		if got, err := Find("org/model", "org/model"); err == nil || !strings.Contains(err.Error(), cache) || !strings.HasSuffix(err.Error(), ": hf download org/model") {
			t.Errorf("%s: %q, %v", c.variable, got, err)
		}
		write(t, commit, cache, "models--org--model", "refs", "main")
		config := write(t, "{}", cache, "models--org--model", "snapshots", commit, "config.json")
		if got, err := Find("org/model", "org/model"); err != nil || got != filepath.Dir(config) {
			t.Errorf("%s: %q, %v", c.variable, got, err)
		}
	}
}

// TestExpandedVariables: values that no shell has expanded are expanded, as huggingface_hub does.
func TestExpandedVariables(t *testing.T) {
	clearEnvironment(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("SCRATCH_OF_TEST", home)
	config := write(t, "{}", home, "hf", "hub", "models--org--model", "snapshots", commit, "config.json")
	write(t, commit, home, "hf", "hub", "models--org--model", "refs", "main")
	for _, c := range [][2]string{{"HF_HOME", "~/hf"}, {"HF_HUB_CACHE", "$SCRATCH_OF_TEST/hf/hub"}, {"HF_HUB_CACHE", "${SCRATCH_OF_TEST}/hf/hub"}, {"HF_HUB_CACHE", "~/hf/hub"}} {
		t.Setenv(c[0], c[1])
		if got, err := Find("org/model", "org/model"); err != nil || got != filepath.Dir(config) {
			t.Errorf("%s=%s: %q, %v", c[0], c[1], got, err)
		}
	}
}

// TestRevision finds a branch, a tag, a pull request and a commit, each in its snapshot.
func TestRevision(t *testing.T) {
	clearEnvironment(t)
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	other := strings.Repeat("ab", 20)
	write(t, commit, cache, "models--org--model", "refs", "main")
	newest := filepath.Dir(write(t, "{}", cache, "models--org--model", "snapshots", commit, "config.json"))
	for _, ref := range []string{"v1.0", "refs/pr/3", "feature--x", other} {
		if ref != other {
			write(t, other+"\n", cache, "models--org--model", "refs", filepath.FromSlash(ref))
		}
		if _, err := Find("org/model@"+ref, "org/model@"+ref); err == nil || !strings.HasSuffix(err.Error(), ": hf download org/model --revision "+ref) {
			t.Errorf("%s without its snapshot: %v", ref, err)
		}
	}
	older := filepath.Dir(write(t, "{}", cache, "models--org--model", "snapshots", other, "config.json"))
	for ref, want := range map[string]string{"": newest, "@main": newest, "@v1.0": older, "@refs/pr/3": older, "@feature--x": older, "@" + other: older, "@" + commit: newest} {
		if got, err := Find("org/model"+ref, "org/model"+ref); err != nil || got != want {
			t.Errorf("org/model%s: %q, %v", ref, got, err)
		}
	}
	for _, name := range []string{"org/model@", "org/model@../../x", "org/model@a b", "org/model@a@b", "org@v1/model"} {
		if IsName(name) {
			t.Errorf("%q is taken for a name", name)
		}
	}
}

func TestAPathComesFirst(t *testing.T) {
	clearEnvironment(t)
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	write(t, commit, cache, "models--org--model", "refs", "main")
	write(t, "{}", cache, "models--org--model", "snapshots", commit, "config.json")
	folder := t.TempDir()
	if got, err := Find(folder, "org/model"); err != nil || got != folder {
		t.Errorf("%q, %v", got, err)
	}
	missing := filepath.Join(folder, "missing")
	if _, err := Find(missing, "../../missing"); err == nil || !strings.Contains(err.Error(), missing) || strings.Contains(err.Error(), "hf download") {
		t.Error(err)
	}
	if _, err := Find("models/missing.gguf", "models/missing.gguf"); err == nil || strings.Contains(err.Error(), "hf download") {
		t.Errorf("a GGUF file is looked for on the Hub: %v", err)
	}
}

func TestDamagedCache(t *testing.T) {
	clearEnvironment(t)
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	for _, ref := range []string{"", "../../../etc", strings.Repeat("a", 1000), strings.ToUpper(commit)} {
		write(t, ref, cache, "models--org--model", "refs", "main")
		if got, err := Find("org/model", "org/model"); err == nil || !strings.Contains(err.Error(), "not the name of a commit") {
			t.Errorf("refs/main %.20q: %q, %v", ref, got, err)
		}
	}
	write(t, commit, cache, "models--org--model", "refs", "main")
	if _, err := Find("org/model", "org/model"); err == nil || !strings.Contains(err.Error(), "hf download org/model") {
		t.Errorf("a snapshot that is not there: %v", err)
	}
}

func TestIsName(t *testing.T) {
	for text, want := range map[string]bool{
		"Qwen/Qwen3-0.6B": true, "HuggingFaceTB/SmolLM2-135M-Instruct": true, "a/b": true,
		"gpt2": false, "a/b/c": false, "../../b": false, "/a/b": false, "a/../b": false, "a/..": false, "a--b/c": false, "": false, "a/b c": false,
		"a/" + strings.Repeat("b", 300): false,
	} {
		if IsName(text) != want {
			t.Errorf("IsName(%.40q) = %v", text, !want)
		}
	}
}
