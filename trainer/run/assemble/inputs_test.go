package assemble

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestSampleDigest checks that the digest of a folder changes with the weights and the settings in it, and with nothing else.
func TestSampleDigest(t *testing.T) {
	dir := t.TempDir()
	weights := bytes.Repeat([]byte{1, 2, 3}, 1<<20)
	digest := func(name string, data []byte) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := sampleDigest(dir)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := digest("README.md", nil); got != "" {
		t.Errorf("a folder without a model has the digest %s", got)
	}
	digest("config.json", []byte("{}"))
	first := digest("model.safetensors", weights)
	if got := digest("README.md", []byte("new")); got != first {
		t.Error("the digest depends on the text of a file that is not read")
	}
	last := bytes.Clone(weights)
	last[len(last)-1]++
	for name, data := range map[string][]byte{"model.safetensors": last, "config.json": []byte("[]")} {
		if got := digest(name, data); got == first {
			t.Errorf("another %s has the same digest", name)
		}
	}
	if got, err := sampleDigest(filepath.Join(dir, "absent")); got != "" || err != nil {
		t.Errorf("an absent file has the digest %q, %v", got, err)
	}
}
