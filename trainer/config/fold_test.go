package config

import (
	"strings"
	"testing"
)

// TestFoldIsRefused checks limits that make folding impossible, and agents whose conversations cannot be folded.
func TestFoldIsRefused(t *testing.T) {
	const team = "run: {name: t}\ntask: {kind: jsonl, train: a, eval: b}\nagents: {a: {role: main, model: m}, b: {role: sub, model: m}}\n"
	at := func(agent, fold string) string { return "agents." + agent + ".limits.fold=" + fold }
	for name, c := range map[string]struct {
		sets []string
		want string // "": it is possible
	}{
		"possible":      {[]string{at("a", "{at: 3008, keep: 2}")}, ""},
		"the least":     {[]string{at("b", "{at: 513}")}, ""},
		"below":         {[]string{at("b", "{at: 512}")}, "agents.b.limits.fold.at: must be above max_new_tokens, 512"},
		"above":         {[]string{at("a", "{at: 3009}")}, "agents.a.limits.fold.at: must be at most 3008: a conversation may have 4096 tokens"},
		"small context": {[]string{at("a", "{at: 2000}"), "agents.a.limits.max_tokens=2048"}, "agents.a.limits.fold.at: must be at most 960"},
		"keep alone":    {[]string{at("a", "{keep: 1}")}, "agents.a.limits.fold.at: missing"},
		"program":       {[]string{at("a", "{at: 2000}"), "task.program.command=[x]"}, "agents.a.limits.fold: a program plays the rollouts"},
		"hosted":        {[]string{at("b", "{at: 2000}"), "agents.b.model={kind: openai, url: https://h/v1, name: n}"}, "agents.b.limits.fold: the model of b is hosted"},
		"research":      {[]string{at("a", "{at: 2000}"), "task={kind: research}"}, "agents.a.limits.fold: the task research has its own dialect"},
	} {
		_, err := Parse("f.yaml", []byte(team), c.sets)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}
