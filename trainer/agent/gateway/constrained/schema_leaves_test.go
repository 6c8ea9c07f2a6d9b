package constrained

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestLeavesAreBounded: a schema whose references branch at every level has more alternatives
// than a grammar can list. It is refused before all of them are listed.
func TestLeavesAreBounded(t *testing.T) {
	const levels, branches = 14, 40
	for _, last := range []string{`{"type": "string"}`, `{"anyOf": []}`} {
		var defs []string
		for i := range levels {
			next := slices.Repeat([]string{fmt.Sprintf(`{"$ref": "#/$defs/d%d"}`, i+1)}, branches)
			defs = append(defs, fmt.Sprintf(`"d%d": {"anyOf": [%s]}`, i, strings.Join(next, ", ")))
		}
		root, err := parseSchema([]byte(fmt.Sprintf(`{"$defs": {%s, "d%d": %s}}`, strings.Join(defs, ", "), levels, last)))
		if err != nil {
			t.Fatal(err)
		}
		first, err := parseSchema([]byte(`{"$ref": "#/$defs/d0"}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaves(first, root); err == nil || !strings.Contains(err.Error(), "more than 16384 alternatives") {
			t.Errorf("%s: %v", last, err)
		}
	}
}
