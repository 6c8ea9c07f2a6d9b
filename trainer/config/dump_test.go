package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestSetOfSavedFile: an override changes a saved configuration as it changes the user's own file.
func TestSetOfSavedFile(t *testing.T) {
	const own = `run: {name: t, steps: 4}
grpo: {align: {d: 2}}
cold_start: {demonstrations: task, steps: 5, optimizer: {schedule: cosine}}
agents:
  boss: {role: main, model: {width: 8, layers: 1, heads: 2, ffn: 16}, optimizer: {schedule: linear, floor: 0}, cold_start: {steps: 7}}
  help: {role: sub, model: models/b, align: {d: 3}, optimizer: {schedule: linear, decay_steps: 4}}
  aide: {role: sub, model: models/b, align: {d: 2}, optimizer: {schedule: linear, decay_steps: 0}}
`
	remote := "agents.help.engine={kind: vllm, url: [\"http://h:1\"], weights: {path: w}}"
	for _, c := range []struct{ before, sets []string }{
		{nil, nil},
		{nil, []string{"run.steps=8"}},
		{nil, []string{"grpo.align.d=7"}},
		{nil, []string{"cold_start.steps=99"}},
		{nil, []string{"cold_start.optimizer.hold=0.5", "cold_start.batch=3"}},
		{nil, []string{"agents.boss.cold_start.steps=9"}},
		{nil, []string{"agents.boss.model.heads=4"}},
		{nil, []string{remote}},
		{nil, []string{"cold_start.demonstrations=none"}},
		{[]string{"cold_start.demonstrations=./parts"}, []string{"run.steps=2"}},
		{[]string{"cold_start.demonstrations=./task"}, nil},
		{[]string{"agents.help.lora={init: ./gaussian}"}, nil},
		{[]string{"cold_start.demonstrations=none"}, []string{"run.steps=2"}},
		{[]string{"run.arm=single"}, []string{"run.arm=team"}},
		{[]string{remote}, []string{"agents.help.engine.weights.dtype=fp32"}},
		{[]string{remote}, []string{"agents.help.engine={kind: local}"}},
		{[]string{"agents.help.devices=[cuda:2]"}, []string{"agents.help.devices=[cuda:0, cuda:1]"}},
		{[]string{"task={kind: jsonl, train: a, eval: b}", "agents.aide.model={kind: openai, url: http://h, name: n}"}, []string{"agents.aide.model=models/b"}},
	} {
		saved := mustParse(t, own, c.before...)
		saved.Run.Dir = "runs/t"
		got := mustParse(t, string(saved.Dump(saved.dir)), c.sets...)
		want := mustParse(t, own, append(c.before, c.sets...)...)
		if d := cmp.Diff(want, got, equal); d != "" {
			t.Errorf("%v, then %v (-own +saved):\n%s", c.before, c.sets, d)
		}
	}
	if steps := mustParse(t, own, "run.steps=3").Agent("aide").Optimizer.DecaySteps; steps != 3 {
		t.Errorf("decay_steps of the user's own file: %d", steps)
	}
}

// TestDumpOfChanged: a configuration that a program has changed reads back as it is, also where derived values no longer fit.
func TestDumpOfChanged(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"a source":        func(c *Config) { c.Run.Steps = 7 },
		"a derived value": func(c *Config) { c.Agents[0].Optimizer.DecaySteps = 3 },
		"a section":       func(c *Config) { c.GRPO.Align.D, c.ColdStart.Supervised.Batch = 2, 3 },
		"a chain":         func(c *Config) { c.GRPO.TISCap = new(3.0) },
		"a mistake":       func(c *Config) { c.Agents[0].Optimizer.DecaySteps, c.Agents[0].Optimizer.Warmup = 100, 50 },
	} {
		c := mustParse(t, minimal, "agents.boss.optimizer.schedule=linear", "run.steps=9", "agents.boss.devices=[cuda:1]",
			"agents.help.engine={kind: vllm, url: [\"http://h:1\"], weights: {path: w}}")
		change(c)
		again := mustParse(t, string(c.Dump(c.dir)))
		if d := cmp.Diff(c, again, equal, cmpopts.IgnoreFields(Optimizer{}, "EndsWithRun")); d != "" {
			t.Errorf("%s (-first +second):\n%s", name, d)
		}
	}
}
