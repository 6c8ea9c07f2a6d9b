package config

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKeysWithoutEffect: a key that has no effect because of another key is refused, with the other key.
func TestKeysWithoutEffect(t *testing.T) {
	jsonl := []string{"task.kind=jsonl", "task.train=r", "task.eval=r"}
	for _, c := range []struct {
		sets []string
		with string // "": accepted
	}{
		{[]string{"agents.a.cold_start.steps=10"}, "cold_start.demonstrations other than none"},
		{[]string{"cold_start.batch=10"}, "cold_start.demonstrations other than none"},
		{append(jsonl, "task.verifier.tolerance=0.5"), "task.verifier.kind numeric or quantity, or task.verifier.kind auto and task.kind gsm8k"},
		{append(jsonl, "task.verifier={kind: numeric, tolerance: 0.5}"), ""},
		{[]string{"task={kind: gsm8k, train: r, eval: r, verifier: {tolerance: 0.5}}"}, ""},
		{append(jsonl, "task.verifier.kind=numeric", "task.expert.relative=0.5"), "task.kind jsonl or gsm8k and task.expert.kind other than auto"},
		{append(jsonl, "task.verifier.timeout=9s"), "task.verifier.kind program"},
		{append(jsonl, "task.judge.model=m"), "task.verifier.kind judge, or task.expert.kind judge"},
		{append(jsonl, "task.research.hops=2"), "task.kind research"},
		{append(jsonl, "task.program.parallel=2"), "task.program.command"},
		{[]string{"agents.a.optimizer.decay_steps=100"}, "agents.a.optimizer.schedule linear or cosine"},
		{[]string{"agents.a.optimizer={schedule: linear, decay_steps: 100}"}, ""},
		{[]string{"grpo.ratio=cispo", "grpo.eps_high=4"}, "grpo.ratio other than cispo"},
		{[]string{"grpo.ratio=cispo", "grpo.dual_clip=4"}, "grpo.ratio other than cispo"},
		{[]string{"grpo.cispo_high=1"}, "grpo.ratio cispo"},
		{[]string{"grpo.convention=sample", "grpo.sigma_min=0.1"}, "grpo.convention population"},
		{[]string{"grpo.max_length=2048"}, "grpo.aggregation constant"},
		{[]string{"agents.a.reference=m"}, "grpo.kl other than none"},
		{[]string{"gateway.token_env=X"}, "gateway.listen, or task.program.command, or task.program.elsewhere"},
		{append(jsonl, "agents.b.model={kind: openai, url: http://h, name: n}", "agents.b.optimizer.lr=1"), ""},
	} {
		_, err := Parse("f.yaml", []byte(team), c.sets)
		want := "has an effect only with " + c.with
		if c.with == "" && err != nil || c.with != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: got %v, want %q", c.sets, err, want)
		}
	}
}

// TestSwitchesOff: a key that was switched off on purpose leaves others without effect, unless they are given later.
func TestSwitchesOff(t *testing.T) {
	text := strings.Replace(minimal, "model: models/b", "model: models/b, train: false, optimizer: {lr: 0.5}, cold_start: {steps: 3}", 1) +
		"cold_start: {demonstrations: task, steps: 5}\n"
	off := mustParse(t, text, "cold_start.demonstrations=none")
	mustParse(t, string(off.Dump(".")))
	mustParse(t, text, "agents.boss.optimizer={schedule: constant, decay_steps: 9}")
	for _, set := range []string{"cold_start.batch=2", "agents.help.optimizer.lr=0.1", "agents.boss.optimizer.hold=0.1"} {
		if _, err := Parse("f.yaml", off.Dump("."), []string{set}); err == nil || !strings.Contains(err.Error(), "has an effect only with") {
			t.Errorf("%s: %v", set, err)
		}
	}
}

// TestConditionsNameKeys checks that conditions name keys that exist.
func TestConditionsNameKeys(t *testing.T) {
	keys := schemaKeys()
	for _, r := range reference() {
		_, with, found := strings.Cut(r.doc, " Only with ")
		if !found {
			continue
		}
		with, _, _ = strings.Cut(with, ". ")
		if key, _, _ := strings.Cut(strings.TrimRight(with, "."), " "); !slices.Contains(keys, strings.TrimSuffix(key, ",")) {
			t.Errorf("%s: there is no key %s", r.key, key)
		}
	}
}

// TestExamplesLoad loads the configurations of the repository, and what a run saves of them.
func TestExamplesLoad(t *testing.T) {
	var files []string
	for _, pattern := range []string{
		"../../examples/*/*.yaml", "../../bench/*/*.yaml", "../../bench/studies/*/*.yaml", "../show/report/testdata/run/config.yaml",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	files = slices.DeleteFunc(files, func(file string) bool { return strings.HasPrefix(file, "../../bench/document/") }) // texts
	if len(files) < 20 {
		t.Errorf("%d configurations", len(files))
	}
	for _, file := range files {
		c, err := Load(file, nil)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := Parse("saved.yaml", c.Dump("."), nil); err != nil {
			t.Error(err)
		}
	}
}
