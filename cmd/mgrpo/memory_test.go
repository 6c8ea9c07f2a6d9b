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

// peakFile names the file to which mgrpo, run by a test, writes the peak of its memory. The kernel's account of a child
// that has ended (ru_maxrss) is of no use: it begins with the peak of the process that started it.
const peakFile = "MGRPO_TEST_PEAK"

// watchPeak keeps the line VmHWM of /proc/self/status in a file, until the program ends, in whatever way.
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

// tolerance is the relative difference that is allowed between predicted and used memory.
const tolerance = 0.2

// TestPredictedMemory compares the peak memory of a training, minus that of the same program without a model, with the
// memory that the training printed before it began. One agent trains: the peaks of two need not coincide.
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
		t.Fatalf("no sum of memory in %.300q: %v", said, err)
	}
	took := float64(with-without) / (1 << 30)
	t.Logf("predicted %.1f GiB, took %.2f GiB", needed, took)
	if took > needed*(1+tolerance) || took < needed*(1-tolerance) {
		t.Errorf("training takes %.2f GiB at its peak, and %.1f GiB were predicted", took, needed)
	}
}
