package arch

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestLongListsAreNotPrinted: an error prints the length of a GGUF list, which may have millions of elements.
func TestLongListsAreNotPrinted(t *testing.T) {
	for want, list := range map[string]any{"a list of 1000": make([]int64, 1000), "a list of 2": []string{"x", "y"}} {
		k, n, text := &keys{values: map[string]any{"key": list}}, 0, ""
		if k.integer("key", &n); k.err == nil || !strings.Contains(k.err.Error(), "key is "+want+": must be an integer") {
			t.Errorf("integer: %v", k.err)
		}
		k.err = nil
		if k.text("key", &text); k.err == nil || !strings.Contains(k.err.Error(), "key is "+want+": must be a string") {
			t.Errorf("text: %v", k.err)
		}
	}
}

// Metadata may list the number of heads for each layer, and must have the epsilon of norms, as in llama.cpp.
func TestGGUFKeys(t *testing.T) {
	meta, shapes := ropeMetadata(nil)
	meta["llama.attention.head_count"] = []int64{2}
	if c, err := FromGGUF(meta, shapes, nil); err != nil || c.Heads != 2 {
		t.Errorf("a list of heads: %d heads, %v", c.Heads, err)
	}
	delete(meta, "llama.attention.layer_norm_rms_epsilon")
	_, err := FromGGUF(meta, shapes, nil)
	golden.WantError(t, err, "llama.attention.layer_norm_rms_epsilon is missing")
}
