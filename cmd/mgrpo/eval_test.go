package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Evaluating a checkpoint gives the same tokens as the run's own evaluation of that version.
func TestEvalRepeatsTheRun(t *testing.T) {
	dir := t.TempDir()
	set := []string{filepath.Join("..", "..", "examples", "quickstart", "team.yaml")}
	for _, s := range []string{"run.dir=" + dir, "run.steps=1", "task.queries_per_step=2", "grpo.rollouts=4", "eval.queries=9", "eval.samples=2",
		"eval.before=false", "cold_start.queries=64", "agents.planner.cold_start.steps=60", "agents.researcher.cold_start.steps=60"} {
		set = append(set, "--set", s)
	}
	trained := mustRun(t, "", append([]string{"train"}, set...)...)
	if !strings.HasPrefix(strings.TrimSpace(trained), "memory") || !strings.Contains(trained, "copy") {
		t.Errorf("train does not begin with the table of memory: %.200q", trained)
	}
	table := mustRun(t, "", append([]string{"eval"}, set...)...)
	for _, agent := range []string{"planner", "researcher"} {
		own, err := os.ReadFile(one(t, filepath.Join(dir, "trajectories", "eval*", agent+".jsonl")))
		if err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(one(t, filepath.Join(dir, "eval", "step-000001-9x2-*", "trajectories", "eval*", agent+".jsonl")))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(own, again) || agent == "planner" && bytes.Count(own, []byte("\n")) != 18 {
			t.Errorf("%s: the run's %d trajectories differ from mgrpo eval's", agent, bytes.Count(own, []byte("\n")))
		}
	}
	step := filepath.Join(dir, "checkpoints", "step-000001")
	named := mustRun(t, "", append(append([]string{"eval", "--checkpoint", step}, set...), "--set", "eval.samples=3")...)
	for _, want := range []string{"9 queries x 2 samples", "accuracy ", "pass@1 ", "pass@2 ", "planner ", "researcher ", "step-000001-9x2"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	var counted struct {
		Scores []struct{ Questions, Samples int }
	}
	text := mustRun(t, "", append([]string{"eval", "--json"}, set...)...)
	if json.Unmarshal([]byte(text), &counted) != nil || len(counted.Scores) != 1 || counted.Scores[0].Questions != 9 || counted.Scores[0].Samples != 2 {
		t.Errorf("%+v in\n%s", counted, text)
	}
	earlier := filepath.Join(dir, "earlier.json")
	if err := os.WriteFile(earlier, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := mustRun(t, "", append([]string{"eval", "--against", earlier}, set...)...); !strings.Contains(text, "difference    +0.0000  (95 %: +0.0000 to +0.0000) to the other evaluation of these 9") {
		t.Errorf("compared with itself:\n%s", text)
	}
	wantRefusal(t, "", append(append([]string{"eval", "--against", earlier}, set...), "--set", "eval.queries=4"), "evaluations of 9 and 4 questions cannot be compared")
	if !strings.Contains(named, "9 queries x 3 samples") || !strings.Contains(named, "pass@3 ") {
		t.Errorf("with 3 samples:\n%s", named)
	}
	if screen := onTerminal(t, append([]string{"eval", "--checkpoint", step}, set...)...); !strings.Contains(screen, "planner eval-1 ") || !strings.Contains(screen, "\r\x1b[Kcheckpoint ") {
		t.Errorf("on a terminal the table does not replace the progress line: %q", screen)
	}

	for _, wrong := range []string{"nowhere", dir, filepath.Join(dir, "checkpoints", "step-000009")} {
		wantRefusal(t, "", append([]string{"eval", "--checkpoint", wrong}, set...), wrong+" is not a checkpoint", "step-000001")
	}
	model := filepath.Join(step, "planner", "model.safetensors")
	data, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(model, data, 0o644); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "", append([]string{"eval", "--checkpoint", step}, set...), "planner/model.safetensors")
}

// A checkpoint can be evaluated on any questions, even without parts if the training questions have parts.
func TestEvalOfOtherQuestions(t *testing.T) {
	dir := t.TempDir()
	write := func(name, rows string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(rows), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	train := write("train.jsonl", `{"id": "t", "question": "2 + 3 + 4?", "answer": "9", "parts": [{"question": "2 + 3?", "answer": "5"}]}`+"\n")
	mine := write("mine.jsonl", `{"id": "mine-1", "question": "1 + 1?", "answer": "2", "kind": "count"}`+"\n"+`{"id": "mine-2", "question": "1 + 2?", "answer": ["3", "three"], "kind": "sum"}`+"\n")
	set := []string{filepath.Join("..", "..", "examples", "own-task", "team.yaml")}
	for _, s := range []string{smallModel(t, "planner"), smallModel(t, "solver"), "run.dir=" + filepath.Join(dir, "run"), "run.steps=1", "task.train=" + train, "task.eval=" + train,
		"task.expert.kind=parts", "task.queries_per_step=1", "grpo.rollouts=2", "eval.before=false", "eval.queries=1", "eval.samples=1", "cold_start.steps=1"} {
		set = append(set, "--set", s)
	}
	trainToEnd(t, set...)
	var said struct {
		Scores  []struct{ By, Of string }
		Answers []struct{ Question string }
	}
	text := mustRun(t, "", append(append([]string{"eval"}, set...), "--set", "task.eval="+mine, "--set", "eval.queries=2", "--json")...)
	if err := json.Unmarshal([]byte(text), &said); err != nil || len(said.Answers) != 2 || !strings.Contains(said.Answers[0].Question, "mine-1") || len(said.Scores) != 3 || said.Scores[2].Of != "sum" {
		t.Errorf("%v, %+v in\n%s", err, said, text)
	}
	wantRefusal(t, "", append(append([]string{"eval"}, set...), "--set", "task.eval="+filepath.Join(dir, "nowhere.jsonl")), "nowhere.jsonl")
}

// onTerminal runs the program on a pseudo-terminal and returns its output.
func onTerminal(t *testing.T, args ...string) string {
	t.Helper()
	primary, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer primary.Close()
	fd := int(primary.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	secondary, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := program(t, "", args...)
	cmd.Env = append(cmd.Env, "TERM=xterm", "NO_COLOR=1")
	cmd.Stdout, cmd.Stderr = secondary, secondary
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	secondary.Close()
	var screen bytes.Buffer
	io.Copy(&screen, primary) // returns an error when the program ends
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, screen.String())
	}
	return screen.String()
}

// one returns the only file that matches a pattern.
func one(t *testing.T, pattern string) string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s: %v, %v", pattern, paths, err)
	}
	return paths[0]
}
