package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPeersTableNamesKeys checks that docs/coming-from.md names keys that docs/config.md has.
func TestPeersTableNamesKeys(t *testing.T) {
	reference, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	keys, section := map[string]bool{}, ""
	for line := range strings.Lines(string(reference)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		} else if m := regexp.MustCompile("^\\| `([^`]+)` \\|").FindStringSubmatch(line); m != nil {
			keys[section+"."+m[1]] = true
		}
	}
	table, err := os.ReadFile("../../docs/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(string(table), -1)
	if len(rows) < 20 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if !keys[key[1]] {
				t.Errorf("docs/config.md has no key %s", key[1])
			}
		}
	}
}
