package main

import (
	"strings"
	"testing"
)

// Computes the minimum time of a configuration's step on GPUs, and on a CPU with measured kernels.
func TestRoofline(t *testing.T) {
	const team, cpu = "../../examples/quickstart/team.yaml", "../../bench/results/kernels-intel-r-xeon-r-processor-2c-avx512.json"
	short := []string{"bench", "roofline", team, "--prompt=60", "--turns=3", "--sampled=20", "--results=30"}
	out := mustRun(t, "", append(short, "--on=h200,"+cpu)...)
	for _, want := range []string{"H200:", "planner on cuda:0", "researcher on cpu", "decoding", "optimizer", "a step takes at least"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	for want, args := range map[string][]string{
		"limits.max_tokens":      {"bench", "roofline", team},
		"h100, h200, b200":       append(short, "--on=v100"),
		"mgrpo bench kernels":    append(short, "--on=../../bench/results/learner-intel-r-xeon-r-processor-2c-amx.json"),
		"must be at least 1":     append(short, "--turns=0"),
		"name the configuration": {"bench", "roofline"},
	} {
		if _, stderr, status := run(t, "", args...); status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: status %d, stderr %q, want %q", args, status, stderr, want)
		}
	}
}
