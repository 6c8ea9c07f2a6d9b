package arch

import (
	"strings"
	"testing"
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
