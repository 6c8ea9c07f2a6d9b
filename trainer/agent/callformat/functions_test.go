package callformat

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestTypesOfWideSchemas: the types of a parameter with very many alternatives are unknown, and are found out in no time.
func TestTypesOfWideSchemas(t *testing.T) {
	for _, c := range []struct {
		levels, branches int
		want             types
	}{{1, 3, types{"string"}}, {2, 20, types{"string"}}, {4, 200, nil}, {400, 1, types{"string"}}, {2000, 1, nil}} {
		var defs []string
		for i := range c.levels {
			next := slices.Repeat([]string{fmt.Sprintf(`{"$ref": "#/$defs/d%d"}`, i+1)}, c.branches)
			defs = append(defs, fmt.Sprintf(`"d%d": {"anyOf": [%s]}`, i, strings.Join(next, ", ")))
		}
		root := object(json.RawMessage(fmt.Sprintf(`{"$defs": {%s, "d%d": {"type": "string"}}}`, strings.Join(defs, ", "), c.levels)))
		if got := typesOf(json.RawMessage(`{"$ref": "#/$defs/d0"}`), root); !slices.Equal(got, c.want) {
			t.Errorf("%d levels, %d branches: %v, want %v", c.levels, c.branches, got, c.want)
		}
	}
}
