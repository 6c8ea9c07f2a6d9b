package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// localDeployment is a running deploy/local/run.sh with a tiny team.
type localDeployment struct {
	cmd      *exec.Cmd
	out      bytes.Buffer
	dir      string
	ended    chan struct{}
	patience time.Duration
}

// startDeployed starts training the quickstart's team, at its smallest size, for a number of steps.
func startDeployed(t *testing.T, dir, port string, steps int) *localDeployment {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	small, err := os.ReadFile(filepath.Join("..", "..", ".ci", "quickstart-small"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := filepath.Abs(filepath.Join("..", "..", "examples", "quickstart", "team.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{config, "--set", "run.dir=" + filepath.Join(dir, "run"), "--set", "store.lease=10s"}, strings.Fields(string(small))...)
	args = append(args, "--set", fmt.Sprintf("run.steps=%d", steps), "--set", "run.checkpoint_every=3")
	d := &localDeployment{dir: dir, ended: make(chan struct{}), patience: time.Hour}
	d.cmd = exec.Command(filepath.Join(deploy, "local", "run.sh"), args...)
	d.cmd.Env = append(os.Environ(), asProgram+"=1", "OMP_NUM_THREADS=1", "MGRPO="+self, "DIR="+filepath.Join(dir, "redis"),
		"PORT="+port, "HEALTH_PORT="+freePort(t))
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.out
	d.cmd.WaitDelay = 10 * time.Second // a process that outlives the script keeps its output open
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // tests check the exit status
		close(d.ended)
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		time.AfterFunc(time.Hour, func() { _ = d.cmd.Process.Kill() })
		<-d.ended
	})
	return d
}

// status.sh shows the team from any working directory, and each line on the terminal names its source.
func TestDeployLocalIsLookedAt(t *testing.T) {
	dir := t.TempDir()
	d := startDeployed(t, dir, freePort(t), 100_000)
	d.until(t, "a checkpoint", d.checkpointed(3))
	look := exec.CommandContext(t.Context(), filepath.Join(dir, "redis", "status.sh"), "--json")
	look.Dir = t.TempDir()
	look.Env = append(os.Environ(), asProgram+"=1")
	out, err := look.Output()
	var seen struct {
		Agents []struct {
			Agent string
			Alive bool
		}
	}
	if err == nil {
		err = json.Unmarshal(out, &seen)
	}
	if err != nil || len(seen.Agents) != 2 || !seen.Agents[0].Alive || !seen.Agents[1].Alive {
		t.Errorf("status.sh: %v, %+v of %s", err, seen, out)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.status(t)
	from := map[string]int{}
	for line := range strings.Lines(d.out.String()) {
		who, text, ok := strings.Cut(line, " | ")
		if !ok {
			who, text, _ = strings.Cut(line, ": ")
		}
		if who = strings.TrimSpace(who); !slices.Contains([]string{"planner", "researcher", "run.sh", "to look at it"}, who) || text == "" {
			t.Errorf("line without a known source: %q", line)
		}
		from[who]++
	}
	if from["planner"] < 3 || from["researcher"] < 3 {
		t.Errorf("lines: %v", from)
	}
}

// A folder or port that another run uses is refused before any file is written.
func TestDeployLocalBesideAnother(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	first := startDeployed(t, dir, port, 1000)
	users := filepath.Join(dir, "redis", "users.acl")
	first.until(t, "Redis", func() bool { return first.find([]string{"redis-server"}) > 0 })
	before, err := os.ReadFile(users)
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	for _, c := range []struct{ dir, port, want string }{{dir, freePort(t), "another run.sh uses " + dir}, {other, port, "something listens on port " + port}} {
		second := startDeployed(t, c.dir, c.port, 1)
		if status := second.status(t); status != 1 || !strings.Contains(second.out.String(), c.want) {
			t.Errorf("status %d, %q is not in %q", status, c.want, second.out.String())
		}
	}
	if after, err := os.ReadFile(users); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the first run's users have changed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(other, "redis", "users.acl")); err == nil {
		t.Error("the refused run wrote users for the other run's Redis")
	}
}

// The script can be stopped while the Redis or the workers are starting.
func TestDeployLocalStoppedAtOnce(t *testing.T) {
	for _, words := range [][]string{{"redis-server"}, {"worker", "--agent\x00planner\x00"}} {
		d := startDeployed(t, t.TempDir(), freePort(t), 100_000)
		d.until(t, strings.Join(words, " "), func() bool { return d.find(words) > 0 })
		if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if status := d.status(t); status != exitStopped {
			t.Errorf("stopped while %q was starting: status %d: %s", words, status, d.out.String())
		}
	}
}

// until waits until there() is true.
func (d *localDeployment) until(t *testing.T, what string, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d.patience); !there(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-d.ended:
			t.Fatalf("it ended before %s: %s", what, d.out.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s in %v", what, d.patience)
		}
	}
}

// status returns the script's exit status.
func (d *localDeployment) status(t *testing.T) int {
	t.Helper()
	select {
	case <-d.ended:
	case <-time.After(d.patience):
		t.Fatalf("it did not end within %v", d.patience)
	}
	return d.cmd.ProcessState.ExitCode()
}

// kill kills the child process of the script whose command line contains all words.
func (d *localDeployment) kill(t *testing.T, words ...string) {
	t.Helper()
	var found int
	d.until(t, "process of "+strings.Join(words, " "), func() bool {
		found = d.find(words)
		return found > 0
	})
	if err := syscall.Kill(found, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// find returns the process id of such a child of the script, or 0 without one.
func (d *localDeployment) find(words []string) int {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		all := true
		for _, w := range words {
			all = all && bytes.Contains(line, []byte(w))
		}
		var pid, parent int
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		if err != nil || !all {
			continue
		}
		name := bytes.LastIndexByte(stat, ')') // the name may contain any character
		fmt.Sscan(string(stat), &pid)
		fmt.Sscanf(string(stat[name+1:]), " %s %d", new(string), &parent)
		if parent == d.cmd.Process.Pid {
			return pid
		}
	}
	return 0
}

func (d *localDeployment) checkpointed(step int) func() bool {
	return func() bool {
		_, err := os.Stat(filepath.Join(d.dir, "run", "checkpoints", fmt.Sprintf("step-%06d", step), "manifest.json"))
		return err == nil
	}
}

// newest returns the training step of the newest checkpoint.
func (d *localDeployment) newest(t *testing.T) (step int) {
	t.Helper()
	steps, err := filepath.Glob(filepath.Join(d.dir, "run", "checkpoints", "step-??????", "manifest.json"))
	if err != nil || len(steps) == 0 {
		t.Fatalf("no checkpoint: %v: %s", err, d.out.String())
	}
	if _, err := fmt.Sscanf(filepath.Base(filepath.Dir(steps[len(steps)-1])), "step-%d", &step); err != nil {
		t.Fatal(err)
	}
	return step
}

// Kills a worker and the Redis, stops the whole run, starts it again and waits for its end.
func TestDeployLocalGoesOn(t *testing.T) {
	dir, port := t.TempDir(), freePort(t)
	d := startDeployed(t, dir, port, 100_000)
	d.until(t, "a checkpoint", d.checkpointed(3))
	for _, victim := range [][]string{{"worker", "--agent\x00researcher\x00"}, {"redis-server"}} {
		d.kill(t, victim...)
		before := d.newest(t)
		d.until(t, "step after "+victim[0]+" was killed", func() bool { return d.newest(t) > before+3 })
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := d.status(t); status != exitStopped {
		t.Errorf("stopped with status %d, want %d: %s", status, exitStopped, d.out.String())
	}
	last := d.newest(t)
	d = startDeployed(t, dir, port, last+3)
	if status := d.status(t); status != 0 || d.newest(t) != last+3 {
		t.Errorf("resumed from step %d, it ended with status %d: %s", last, status, d.out.String())
	}
	if from := fmt.Sprintf("step-%06d, step %d of %d", last, last, last+3); !strings.Contains(d.out.String(), from) {
		t.Errorf("it did not resume from %s: %s", from, d.out.String())
	}
}
