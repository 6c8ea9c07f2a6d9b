package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
)

// asProgram makes the test binary act as mgrpo, so tests run the commands as a user does, without another build.
const asProgram = "MGRPO_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if path := os.Getenv(peakFile); path != "" {
			go watchPeak(path)
		}
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestSameFile: the output must not be the input, which it would empty.
func TestSameFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.jsonl")
	const text = `{"groups":[{"rewards":[1,0]}]}` + "\n"
	link := file + ".link"
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{file, link} {
		if _, errs, status := run(t, "", "advantages", "-i", file, "-o", out); status != 1 || !strings.Contains(errs, "is also the input") {
			t.Errorf("%s: status %d, %s", out, status, errs)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != text {
		t.Errorf("the file has %q, %v", got, err)
	}
}

// program returns a command that runs mgrpo in the test's folder.
func program(t testing.TB, stdin string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "OMP_NUM_THREADS=1", "COLUMNS=80")
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// run runs mgrpo and returns its output and exit status.
func run(t testing.TB, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := program(t, stdin, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	status = cmd.ProcessState.ExitCode()
	if status < 0 || strings.Contains(errs.String(), "goroutine ") {
		t.Errorf("%v crashed with status %d: %.2000s", args, status, errs.String())
	}
	return out.String(), errs.String(), status
}

// mustRun runs mgrpo and requires status 0.
func mustRun(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	stdout, stderr, status := run(t, stdin, args...)
	if status != 0 {
		t.Fatalf("%v: status %d: %s", args, status, stderr)
	}
	return stdout
}

// trainToEnd runs `mgrpo train` and requires that the run completes its steps. Agents without a
// cold start learn nothing in these steps, and the program reports that.
func trainToEnd(t testing.TB, args ...string) (stdout string) {
	t.Helper()
	stdout, stderr, status := run(t, "", append([]string{"train"}, args...)...)
	if status != 0 && !strings.Contains(stderr, "mgrpo: "+trainer.ErrNothingTrained.Error()+":") {
		t.Fatalf("train %v: status %d: %s", args, status, stderr)
	}
	return stdout
}

// wantRefusal runs mgrpo and requires status 1 and one line on standard error that contains every word.
func wantRefusal(t testing.TB, stdin string, args []string, words ...string) {
	t.Helper()
	_, stderr, status := run(t, stdin, args...)
	if status != 1 || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "mgrpo: ") {
		t.Errorf("%v: status %d, standard error %q: want status 1 and one line", args, status, stderr)
	}
	for _, word := range words {
		if !strings.Contains(stderr, word) {
			t.Errorf("%v: %q does not name %q", args, stderr, word)
		}
	}
}

var testdata = filepath.Join("..", "..", "testdata")

// TestWrongCommand checks that the error for a wrong command names the nearest command instead
// of all commands. Without a command, mgrpo prints the help.
func TestWrongCommand(t *testing.T) {
	if out, stderr, status := run(t, "", "trian"); status != exitUsage || !strings.Contains(stderr, `did you mean "train"?`) || strings.Count(out, "\n") > 4 {
		t.Errorf("status %d, %s%s", status, out, stderr)
	}
	if out := mustRun(t, ""); !strings.Contains(out, "Usage: mgrpo") || !strings.Contains(out, "rollout") {
		t.Errorf("without a command: %s", out)
	}
}

func TestHelpFits80Columns(t *testing.T) {
	commands := []string{"", "train", "worker", "rollout", "status", "report", "track", "init", "doctor", "export", "merge", "eval", "chat", "serve", "version",
		"generate", "score", "tokenize", "render", "advantages"}
	for _, command := range commands {
		args := []string{command, "--help"}
		if command == "" {
			args = args[1:]
		}
		help := mustRun(t, "", args...)
		if !strings.Contains(help, "Usage: mgrpo") {
			t.Errorf("%s: %q", command, help)
		}
		for line := range strings.Lines(help) {
			if len(strings.TrimRight(line, "\n")) > 80 {
				t.Errorf("%s --help is wider than 80: %q", command, line)
			}
		}
		if command == "" {
			for _, c := range commands[1:] {
				if !strings.Contains(help, "  "+c+" ") {
					t.Errorf("--help does not list %s", c)
				}
			}
		}
	}
}

// smallModel returns the setting that gives an agent a small random model.
func smallModel(t *testing.T, agent string) string {
	t.Helper()
	smol, err := filepath.Abs(filepath.Join(testdata, "tokenizer", "smollm2"))
	if err != nil {
		t.Fatal(err)
	}
	return "agents." + agent + ".model={family: llama, width: 32, layers: 1, heads: 2, ffn: 64, tokenizer: " + smol + "}"
}

// Every template passes doctor and trains a step. Models of the Hub are replaced by small random ones.
func TestTemplates(t *testing.T) {
	shape := func(agent string) string { return smallModel(t, agent) }
	for template, set := range map[string][]string{
		"quickstart": {"cold_start.queries=8", "agents.planner.cold_start.steps=60", "agents.researcher.cold_start.steps=60",
			"agents.planner.optimizer.warmup=0", "agents.researcher.optimizer.warmup=0"},
		"own-task": {shape("planner"), shape("solver"), "cold_start.steps=2", "agents.planner.limits.max_new_tokens=8"},
		"program":  {shape("writer"), "cold_start.steps=1"},
		"research": {shape("planner"), shape("searcher"), "agents.planner.limits.max_new_tokens=8", "agents.searcher.limits.max_new_tokens=8"},
	} {
		t.Run(template, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mine", "team.yaml")
			said := mustRun(t, "", "init", "--template", template, file)
			if !strings.Contains(said, "mgrpo train "+file) {
				t.Errorf("init printed %q", said)
			}
			if cfg, err := config.Load(file, nil); err != nil || cfg.Run.Name != "mine" || !strings.HasSuffix(cfg.RunDir(), "/mine/runs/mine") {
				t.Errorf("the run's name is not its folder's name: %v, %+v", err, cfg.Run)
			}
			args := []string{file}
			for _, s := range append(set, "run.steps=1", "task.queries_per_step=2", "grpo.rollouts=2", "grpo.minibatches=1", "eval.queries=1", "eval.samples=1") {
				args = append(args, "--set", s)
			}
			mustRun(t, "", append([]string{"doctor"}, args...)...)
			trainToEnd(t, args...)
			if runs, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "runs", "*", "checkpoints", "step-000001")); len(runs) != 1 {
				t.Errorf("checkpoints %v, want one next to the configuration", runs)
			}
			wantRefusal(t, "", []string{"init", "--template", template, file}, "is there already")
		})
	}
}

func TestInit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "team.yaml")
	if said := mustRun(t, "", "init", file); strings.Contains(said, " 0 more") {
		t.Errorf("init printed %q", said)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "\n  name: quickstart          # also") || !strings.Contains(string(text), "\n  dir: runs/quickstart      # checkpoints") {
		t.Errorf("%v: the folder's name is not valid for a run: %.300s", err, text)
	}
	odd := filepath.Join(t.TempDir(), "Ada's run", "team.yaml")
	if said, want := mustRun(t, "", "init", odd), "mgrpo train '"+strings.ReplaceAll(odd, "'", `'\''`)+"'\n"; !strings.HasSuffix(said, want) {
		t.Errorf("init printed %q, want %q at the end", said, want)
	}
	if help := mustRun(t, "", "init", "--help"); !strings.Contains(help, "\n    research    a team") {
		t.Errorf("templates are not on separate lines in %q", help)
	}
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "", []string{"init", file}, "is there already")
	if data, _ := os.ReadFile(file); string(data) != "mine" {
		t.Errorf("init overwrote a file: %q", data)
	}
}

// TestInitFolder checks that init writes team.yaml into a folder if its argument is a folder or has no extension.
func TestInitFolder(t *testing.T) {
	dir := t.TempDir()
	for _, folder := range []string{filepath.Join(dir, "q"), dir} {
		if said := mustRun(t, "", "init", folder); !strings.Contains(said, "mgrpo train "+filepath.Join(folder, "team.yaml")) {
			t.Errorf("%s", said)
		}
		if _, err := os.Stat(filepath.Join(folder, "team.yaml")); err != nil {
			t.Error(err)
		}
		wantRefusal(t, "", []string{"init", folder}, "is there already")
	}
}

// Every command that needs a configuration accepts it as an argument.
func TestConfigurationAsArgument(t *testing.T) {
	file := filepath.Join(t.TempDir(), "team.yaml")
	mustRun(t, "", "init", file)
	wrong := filepath.Join(t.TempDir(), "wrong.yaml") // a command that reports this mistake has read the file
	if err := os.WriteFile(wrong, []byte("rum: {name: x}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"train"}, {"worker", "--agent", "planner"}, {"eval"}, {"doctor"}, {"status"}, {"store", "acl"}, {"checkpoint", "list"}} {
		if _, stderr, status := run(t, "", append(command, wrong)...); status != 1 || !strings.Contains(stderr, wrong+":1:1: rum: unknown key") {
			t.Errorf("%v: status %d, %s", command, status, stderr)
		}
	}
	if _, stderr, status := run(t, "", "train", "absent.yaml"); status != 1 || !strings.Contains(stderr, "mgrpo init absent.yaml writes one to start from") {
		t.Errorf("a missing configuration: status %d, %s", status, stderr)
	}
	own := filepath.Join(t.TempDir(), "own.yaml")
	mustRun(t, "", "init", "--template", "own-task", own)
	wantRefusal(t, "", []string{"eval", own, "--set", "task.eval=other.jsonl"}, "a relative path starts from the folder of the configuration, "+filepath.Dir(own))
	wantRefusal(t, "", []string{"train", filepath.Dir(file)}, "is a directory: name the configuration in it, such as "+file)
	for _, command := range [][]string{{"train"}, {"worker", "--agent", "planner"}, {"eval"}, {"status"}, {"store", "acl"}} {
		if _, stderr, status := run(t, "", command...); status != 80 || !strings.Contains(stderr, "team.yaml") || !strings.Contains(stderr, "mgrpo init") {
			t.Errorf("%v without a configuration: status %d, %s", command, status, stderr)
		}
	}
	mustRun(t, "", "doctor", file, "--set", "run.dir="+t.TempDir())
}

func TestUnknownKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "team.yaml")
	mustRun(t, "", "init", file)
	for _, args := range [][]string{{"train"}, {"worker", "--agent", "planner"}, {"eval"}, {"doctor"}} {
		wantRefusal(t, "", append(args, file, "--set", "grpo.rolouts=4"), "grpo.rolouts", "rollouts")
	}
}

// A worker needs a store to meet the others. Without one, its first output is the error.
func TestWorkerWithoutStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "team.yaml")
	mustRun(t, "", "init", file)
	stdout, stderr, status := run(t, "", "worker", file, "--agent", "planner")
	if status != 1 || stdout != "" || !strings.HasPrefix(stderr, "mgrpo: store.url is not set") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
}

func TestTooLittleMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "team.yaml")
	mustRun(t, "", "init", file)
	dir := filepath.Join(t.TempDir(), "run")
	wantRefusal(t, "", []string{"train", file, "--set", "run.dir=" + dir, "--set", "agents.planner.engine.slots=65536",
		"--set", "agents.planner.model.max_positions=1048576", "--set", "agents.planner.limits.max_tokens=1048576"},
		"of memory needed", "lower agents.planner.engine.slots (65536")
	if _, err := os.Stat(dir); err == nil {
		t.Error("the refused run created its folder")
	}
}
