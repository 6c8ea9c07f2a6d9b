package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer"
)

// peakFile names the file in which mgrpo, when a test runs it, records its peak memory. The kernel's
// figure for an ended child (ru_maxrss) is useless, because it starts at the peak of the parent process.
const peakFile = "MGRPO_TEST_PEAK"

// watchPeak copies the line VmHWM of /proc/self/status to a file until the program ends.
func watchPeak(path string) {
	for ; ; time.Sleep(20 * time.Millisecond) {
		status, err := os.ReadFile("/proc/self/status")
		if _, peak, ok := strings.Cut(string(status), "VmHWM:"); err == nil && ok {
			err = os.WriteFile(path+".new", []byte(peak), 0o600)
		}
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			panic(err)
		}
	}
}

// tolerance is the allowed relative difference between predicted and used memory.
const tolerance = 0.2

// TestPredictedMemory compares the peak memory of a training with the prediction that it prints at the beginning. It
// subtracts the peak of the program without a model. Only one agent trains, because the peaks of two need not coincide.
func TestPredictedMemory(t *testing.T) {
	smol, err := filepath.Abs(filepath.Join(testdata, "tokenizer", "smollm2"))
	if err != nil {
		t.Fatal(err)
	}
	shape := "={family: llama, width: 384, layers: 6, heads: 6, kv_heads: 2, ffn: 1024, tokenizer: " + smol + "}"
	args := []string{filepath.Join("..", "..", "examples", "own-task", "team.yaml")}
	for _, s := range []string{"run.dir=" + t.TempDir(), "run.arm=single", "run.steps=1", "run.threads=2", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=1", "eval.samples=1", "eval.before=false",
		"cold_start.steps=1", "cold_start.batch=8", "agents.planner.model" + shape, "agents.solver.model" + shape,
		"agents.planner.limits.max_new_tokens=16", "agents.solver.limits.max_new_tokens=16"} {
		args = append(args, "--set", s)
	}
	peak := func(command string) (bytes int64, stdout string) {
		file := filepath.Join(t.TempDir(), "peak")
		cmd := program(t, "", append([]string{command}, args...)...)
		cmd.Env = append(cmd.Environ(), peakFile+"="+file)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil && !strings.Contains(stderr.String(), trainer.ErrNothingTrained.Error()) {
			t.Fatalf("%s: %v: %s", command, err, &stderr)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var kilobytes int64
		if _, err := fmt.Sscan(string(text), &kilobytes); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return kilobytes << 10, string(out)
	}
	without, _ := peak("doctor")
	with, said := peak("train")
	var needed float64
	_, line, ok := strings.Cut(said, "planner on cpu: ")
	if _, err := fmt.Sscanf(line, "%f GiB of memory needed", &needed); !ok || err != nil {
		t.Fatalf("no total of memory in %.300q: %v", said, err)
	}
	took := float64(with-without) / (1 << 30)
	t.Logf("predicted %.1f GiB, took %.2f GiB", needed, took)
	if took > needed*(1+tolerance) || took < needed*(1-tolerance) {
		t.Errorf("training took %.2f GiB at its peak, but %.1f GiB were predicted", took, needed)
	}
}
