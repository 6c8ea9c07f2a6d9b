package config

import (
	"os"
	"regexp"
	"testing"
)

// TestReadmeExample reads the configuration that README shows as a run would.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("README.md has no yaml block")
	}
	c := mustParse(t, string(block[1]))
	if c.Main().Name != "planner" || len(c.Agents) != 2 {
		t.Errorf("%d agents, main agent %s", len(c.Agents), c.Main().Name)
	}
}
