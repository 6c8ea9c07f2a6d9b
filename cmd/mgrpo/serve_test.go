package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// served starts `mgrpo serve` and returns its base URL and its output. At the end of the test it sends Ctrl-C and requires status 0.
func served(t *testing.T, args ...string) (url, printed string) {
	t.Helper()
	as := program(t, "", append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	cmd := exec.Command(as.Path, as.Args[1:]...) // not bound to the test's context, because Ctrl-C ends it
	cmd.Env, cmd.Stderr = as.Env, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("after Ctrl-C: %v", err)
		}
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		printed += lines.Text() + "\n"
		if _, at, ok := strings.Cut(lines.Text(), ": http"); ok && strings.HasSuffix(at, "/v1") {
			url = "http" + at
		}
		if lines.Text() == "Ctrl-C ends it" && url != "" {
			return url, printed
		}
	}
	t.Fatalf("serve did not print its address: %s", printed)
	return "", ""
}

// chatWith requests a turn from a served model.
func chatWith(t *testing.T, url, model string) (status int, answer string) {
	t.Helper()
	body := `{"model": "` + model + `", "max_tokens": 4, "temperature": 0.5, "messages": [{"role": "user", "content": "Hello"}]}`
	resp, err := http.Post(url+"/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || !json.Valid(data) {
		t.Fatalf("%s %q, %v", resp.Status, data, err)
	}
	return resp.StatusCode, string(data)
}

// TestServe checks that the agents of a trained team answer under their names, and that one agent's folder can be served as a model.
func TestServe(t *testing.T) {
	smol, err := filepath.Abs(filepath.Join(testdata, "tokenizer", "smollm2"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mine", "team.yaml")
	mustRun(t, "", "init", "--template", "own-task", file)
	args := []string{file}
	for _, s := range []string{"agents.planner.limits.max_new_tokens=8", "cold_start.steps=1", "run.steps=1", "task.queries_per_step=2", "grpo.rollouts=2", "eval.queries=1", "eval.samples=1",
		"agents.planner.model={family: llama, width: 32, layers: 1, heads: 2, ffn: 64, tokenizer: " + smol + "}",
		"agents.solver.model={family: llama, width: 32, layers: 1, heads: 2, ffn: 64, tokenizer: " + smol + "}"} {
		args = append(args, "--set", s)
	}
	trainToEnd(t, args...)
	url, printed := served(t, args...)
	for _, want := range []string{"step-000001: " + url, `model "planner": a context of 1024 tokens, at most 8 for a reply`, `model "solver": `, "curl " + url + "/chat/completions -d '{"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is not in: %s", want, printed)
		}
	}
	for _, name := range []string{"planner", "solver"} {
		if status, answer := chatWith(t, url, name); status != 200 || !strings.Contains(answer, `"completion_tokens":`) {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if status, answer := chatWith(t, url, "gpt-5"); status != 404 || !strings.Contains(answer, "planner, solver") {
		t.Errorf("a stranger: %d %s", status, answer)
	}
	folders, err := filepath.Glob(filepath.Join(filepath.Dir(file), "runs", "*", "checkpoints", "step-000001", "solver"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("%v, %v", folders, err)
	}
	t.Setenv("MGRPO_TEST_SERVE", strings.Repeat("0123456789abcdef", 2))
	_, printed = served(t, "--model", folders[0], "--name", "mine", "--context", "64", "--token-env", "MGRPO_TEST_SERVE")
	if want := `model "mine": a context of 64 tokens` + "\n"; !strings.Contains(printed, want) {
		t.Errorf("%q is not in: %s", want, printed)
	}
	_, curl, _ := strings.Cut(printed, "try it: ")
	curl, _, _ = strings.Cut(curl, "\n")
	if answer, err := exec.Command("sh", "-c", curl).Output(); err != nil || !strings.Contains(string(answer), `"completion_tokens":`) {
		t.Errorf("a folder: %s: %s, %v", curl, answer, err)
	}
	wantRefusal(t, "", []string{"serve"}, "name the configuration")
	wantRefusal(t, "", []string{"serve", "--listen", "0.0.0.0:0", "--model", folders[0]}, "--token-env")
	// Refused before the model is opened.
	wantRefusal(t, "", []string{"serve", "--listen", "127.0.0.1", "--model", "nowhere"}, "--listen", "want [HOST:]PORT")
}
