package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/team/store"
	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// deploy/ passes mgrpo to other programs. These tests run its scripts, and check its command lines with mgrpo's parser.

var deploy = filepath.Join("..", "..", "deploy")

// script runs one of deploy's scripts with this program as mgrpo.
func script(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(deploy, name), args...)
	cmd.Env = append(append(os.Environ(), asProgram+"=1", "OMP_NUM_THREADS=1", "MGRPO="+self), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, errs.String())
	}
	return out.String()
}

// parses checks arguments with mgrpo's parser. It returns the command and its flags.
func parses(t *testing.T, args []string) (command string, c *cli) {
	t.Helper()
	c = &cli{}
	parsed, err := newParser(c).Parse(args)
	if err != nil {
		t.Errorf("%q: %v", args, err)
		return "", c
	}
	return parsed.Command(), c
}

// shellWords splits a line into words, as a shell does.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "bash", "-c", `printf '%s\n' `+line).Output()
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func exampleFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "team.yaml")
	if err := os.WriteFile(file, []byte(config.Example()), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// checkWorkers checks the command lines of a team's workers, by agent, and the configurations that they load.
func checkWorkers(t *testing.T, lines map[string][]string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(lines)); !slices.Equal(got, []string{"planner", "researcher"}) {
		t.Fatalf("workers of %v, want planner and researcher", got)
	}
	addresses := map[string]bool{}
	for agent, args := range lines {
		command, c := parses(t, args)
		if command != "worker <FILE>" || c.Worker.Agent != agent || !c.Worker.Resume {
			t.Errorf("%s: %q is %s of %q, resumed: %v", agent, args, command, c.Worker.Agent, c.Worker.Resume)
			continue
		}
		cfg, err := c.Worker.load()
		if err != nil {
			t.Errorf("%s: %v", agent, err)
			continue
		}
		if cfg.Store.Username != "research-team-"+agent || !strings.HasPrefix(cfg.Store.URL, "redis://") || cfg.Run.Steps != 3 {
			t.Errorf("%s: user %q at %q for %d steps", agent, cfg.Store.Username, cfg.Store.URL, cfg.Run.Steps)
		}
		if password, err := cfg.Password(); err != nil || len(password) != 64 {
			t.Errorf("%s: a password of %d bytes: %v", agent, len(password), err)
		}
		if cfg.Health.Address != "" && addresses[cfg.Health.Address] {
			t.Errorf("%s: another worker also listens at %s", agent, cfg.Health.Address)
		}
		addresses[cfg.Health.Address] = true
	}
}

func TestDeployLocal(t *testing.T) {
	dir := t.TempDir()
	out := script(t, []string{"DIR=" + dir}, "local/run.sh", "--dry-run", exampleFile(t), "--set", "run.steps=3")
	lines := map[string][]string{}
	for line := range strings.Lines(out) {
		name, command, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch args := shellWords(t, command); name {
		case "to look at it":
			if want := filepath.Join(dir, "status.sh"); !slices.Equal(args, []string{want}) {
				t.Errorf("%q is not %s", args, want)
			}
		case "redis":
			checkRedis(t, args, dir)
		default:
			lines[name] = args[1:]
		}
	}
	checkWorkers(t, lines)
}

func checkRedis(t *testing.T, args []string, dir string) {
	t.Helper()
	line := " " + strings.Join(args, " ") + " "
	for _, want := range []string{"redis-server ", " --appendonly yes ", " --appendfsync always ", " --maxmemory-policy noeviction ", " --aclfile " + dir + "/users.acl ", " --dir " + dir + " "} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
}

// With MACHINES the nodes become the machines of one agent. They share its address and a key.
func TestDeploySlurmMachines(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	root, err := filepath.Abs(filepath.Join(deploy, ".."))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "scontrol"), []byte("#!/bin/bash\nprintf '%s\\n' node1 node2 node3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"DIR=" + dir, "SLURM_SUBMIT_DIR=" + root, "SLURM_NNODES=3", "SLURMD_NODENAME=node1", "PORT=7000", "MACHINES=researcher=2", "PATH=" + bin + ":" + os.Getenv("PATH")}
	out := strings.Split(strings.TrimSpace(script(t, env, "slurm/team.sbatch", "--dry-run", exampleFile(t), "--set", "run.steps=3")), "\n")
	if len(out) != 5 || !strings.HasPrefix(out[1], "srun --ntasks=3 --ntasks-per-node=1 ") {
		t.Fatalf("%q: want the Redis, srun and three tasks", out)
	}
	var got []string
	for _, line := range out[2:] {
		_, c := parses(t, shellWords(t, line)[1:])
		cfg, err := c.Worker.load()
		if err != nil {
			t.Fatal(err)
		}
		a := cfg.Agent(c.Worker.Agent)
		got = append(got, fmt.Sprintf("%s %d of %d at %q", a.Name, c.Worker.Machine, a.Machines.Count, a.Machines.Address))
		if key, err := cfg.MachinesKey(a); a.Machines.Count > 1 && (err != nil || len(key) != 44) {
			t.Errorf("%s: a key of %d bytes: %v", a.Name, len(key), err)
		}
	}
	if want := []string{`planner 0 of 1 at ""`, `researcher 0 of 2 at "node2:7002"`, `researcher 1 of 2 at "node2:7002"`}; !slices.Equal(got, want) {
		t.Errorf("tasks %q, want %q", got, want)
	}
}

func TestDeploySlurm(t *testing.T) {
	dir := t.TempDir()
	root, err := filepath.Abs(filepath.Join(deploy, ".."))
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"DIR=" + dir, "SLURM_SUBMIT_DIR=" + root, "SLURM_NNODES=2", "SLURMD_NODENAME=node1"}
	out := strings.Split(strings.TrimSpace(script(t, env, "slurm/team.sbatch", "--dry-run", exampleFile(t), "--set", "run.steps=3")), "\n")
	if len(out) != 4 {
		t.Fatalf("%q: want the Redis, srun and two workers", out)
	}
	checkRedis(t, shellWords(t, out[0]), dir)
	if !strings.HasPrefix(out[1], "srun --ntasks=2 --ntasks-per-node=1 ") {
		t.Errorf("%q does not run one task per node", out[1])
	}
	lines := map[string][]string{}
	for _, line := range out[2:] {
		args := shellWords(t, line)
		lines[args[slices.Index(args, "--agent")+1]] = args[1:]
	}
	checkWorkers(t, lines)
}

// The batch script stops the workers and requeues the job when its time is over. It also requeues
// the job after a signal ended the workers, but only five times, and not after an error.
func TestDeploySlurmRequeues(t *testing.T) {
	root, err := filepath.Abs(filepath.Join(deploy, ".."))
	if err != nil {
		t.Fatal(err)
	}
	config := exampleFile(t)
	for name, c := range map[string]struct {
		srun     string // commands to run in place of Slurm's srun
		restarts string // number of times that the job was requeued
		status   int
		requeued bool
	}{
		"complete":        {"exit 0", "0", 0, false},
		"told to stop":    {"trap 'exit 75' TERM; echo $$ >$DIR/srun; kill -TERM $PPID; while :; do sleep 0.1; done", "9", 75, true},
		"stopped by hand": {"exit 75", "0", 75, false},
		"killed":          {"exit 137", "4", 137, true},
		"killed again":    {"exit 137", "5", 137, false},
		"failed":          {"exit 1", "0", 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, bin := t.TempDir(), t.TempDir()
			for program, does := range map[string]string{"srun": c.srun, "scancel": "echo $* >$DIR/scancel; kill -TERM $(cat $DIR/srun)", "scontrol": "echo $* >$DIR/scontrol"} {
				if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/bash\n"+does+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(deploy, "slurm", "team.sbatch"), config)
			port := freePort(t)
			cmd.Env = append(os.Environ(), asProgram+"=1", "OMP_NUM_THREADS=1", "MGRPO="+self, "DIR="+dir, "PATH="+bin+":"+os.Getenv("PATH"), "PORT="+port,
				"SLURM_SUBMIT_DIR="+root, "SLURM_NNODES=2", "SLURM_JOB_ID=17", "SLURMD_NODENAME=localhost", "SLURM_RESTART_COUNT="+c.restarts)
			out, err := cmd.CombinedOutput()
			if status := cmd.ProcessState.ExitCode(); status != c.status {
				t.Errorf("status %d, want %d (%v): %s", status, c.status, err, out)
			}
			requeue, _ := os.ReadFile(filepath.Join(dir, "scontrol"))
			if got := string(requeue) == "requeue 17\n"; got != c.requeued || !got && len(requeue) > 0 {
				t.Errorf("scontrol %q, want a requeue: %v", requeue, c.requeued)
			}
			cancelled, _ := os.ReadFile(filepath.Join(dir, "scancel"))
			if told := name == "told to stop"; told != (string(cancelled) == "--signal=TERM 17.0\n") {
				t.Errorf("scancel %q", cancelled)
			}
			if c, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
				c.Close()
				t.Error("the Redis was left behind")
			}
		})
	}
}

// freePort returns a port that is free at the moment. Another process may take it.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := redisserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Redis reads its file back as the default user and drops everything that this user may not
// access. So the users that acl.sh creates must leave the default user all rights.
func TestDeployACLKeepsData(t *testing.T) {
	dir := t.TempDir()
	server := &redisserver.Server{Dir: dir, Port: freePort(t)}
	t.Cleanup(server.Kill)
	file, url := exampleFile(t), server.URL()+"/0"
	users := strings.Fields(script(t, nil, "acl.sh", dir, file, "--set", "store.url="+url))
	server.Args = append(slices.Clone(redisserver.Durable), "--aclfile", filepath.Join(dir, "users.acl"))
	as := func(user string) store.Options {
		password, err := os.ReadFile(filepath.Join(dir, user+".password"))
		if err != nil {
			t.Fatal(err)
		}
		return store.Options{Run: "research-team", URL: url, Username: user, Password: string(password)}
	}
	look := func() *store.Status {
		s, err := store.ReadStatus(t.Context(), as(users[len(users)-1]))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), as(users[1]))
	if err != nil {
		t.Fatal(err)
	}
	request := store.JoinRequest{Agents: []string{"planner", "researcher"}, Offers: []store.Offer{{Version: store.FromStart}}}
	m, err := s.Join(t.Context(), "planner", request, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	before := look()
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if after := look(); after.Nonce != before.Nonce || after.Nonce != m.Round.Nonce() || after.Agents[0].Epoch != m.Epoch() {
		t.Errorf("after a restart: %+v, before: %+v", after, before)
	}
	if err := errors.Join(m.Leave(t.Context()), s.Close()); err != nil {
		t.Error(err)
	}
}

// documents decodes the documents of one kind from a file of manifests.
func documents[T any](t *testing.T, data []byte, kind string) []T {
	t.Helper()
	var out []T
	for _, text := range bytes.Split(data, []byte("---\n")) {
		if !regexp.MustCompile(`(?m)^kind: ` + kind + `$`).Match(text) {
			continue
		}
		var v T
		if err := yaml.UnmarshalStrict(text, &v); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		out = append(out, v)
	}
	if len(out) == 0 {
		t.Fatalf("no %s", kind)
	}
	return out
}

func manifest(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(deploy, "kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// jobs returns the workers' Jobs: the default ones, the ones with all components, and the planner's on several machines.
func jobs(t *testing.T) (all []batchv1.Job) {
	t.Helper()
	for _, name := range []string{"testdata/workers.yaml", "testdata/gpu.yaml", "machines/planner.yaml"} {
		all = append(all, documents[batchv1.Job](t, manifest(t, name), "Job")...)
	}
	return all
}

// The pods run valid commands, and their Jobs handle mgrpo's exit codes.
func TestDeployKubernetes(t *testing.T) {
	for _, job := range jobs(t) {
		c := job.Spec.Template.Spec.Containers[0]
		for i := range c.Args {
			c.Args[i] = strings.ReplaceAll(c.Args[i], "$(MGRPO_MACHINE)", "1")
		}
		if !slices.Equal(c.Command, []string{"/opt/mgrpo/bin/mgrpo"}) {
			t.Errorf("%s runs %q", job.Name, c.Command)
		}
		command, parsed := parses(t, c.Args)
		if command != "worker <FILE>" || "mgrpo-"+parsed.Worker.Agent != job.Name {
			t.Errorf("%s is %s of %q", job.Name, command, parsed.Worker.Agent)
		}
		done := map[batchv1.PodFailurePolicyAction][]int32{}
		for _, rule := range job.Spec.PodFailurePolicy.Rules {
			if rule.OnExitCodes != nil {
				done[rule.Action] = rule.OnExitCodes.Values
			}
		}
		want := map[batchv1.PodFailurePolicyAction][]int32{
			batchv1.PodFailurePolicyActionIgnore:  {exitStopped},
			batchv1.PodFailurePolicyActionFailJob: {exitFailed, exitUsage},
		}
		if fmt.Sprint(done) != fmt.Sprint(want) {
			t.Errorf("%s: exit codes %v, want %v", job.Name, done, want)
		}
	}
}

// secrets.sh creates the Secrets that the pods refer to, and the ConfigMap has the team's ACL rules.
func TestDeploySecrets(t *testing.T) {
	made := map[string]bool{} // "NAME KEY"
	for _, s := range documents[corev1.Secret](t, []byte(script(t, nil, "kubernetes/secrets.sh")), "Secret") {
		for key, value := range s.StringData {
			made[s.Name+" "+key] = true
			if len(value) < 64 || key != "users.acl" && strings.ContainsAny(value, "\n ") {
				t.Errorf("%s: %s is %q", s.Name, key, value)
			}
			if users := regexp.MustCompile(`(?m)^user (\S+) `).FindAllStringSubmatch(value, -1); key == "users.acl" {
				var names []string
				for _, u := range users {
					names = append(names, u[1])
				}
				if want := []string{"default", "research-team", "research-team-planner", "research-team-researcher", "research-team-status", "redis:replica", "redis:sentinel"}; !slices.Equal(names, want) {
					t.Errorf("users %q, want %q", names, want)
				}
			}
		}
	}
	named := map[string]bool{"mgrpo-store-status password": true} // for users; pods do not refer to it
	var containers []corev1.Container
	for _, job := range jobs(t) {
		containers = append(containers, job.Spec.Template.Spec.Containers...)
	}
	for _, set := range documents[appsv1.StatefulSet](t, manifest(t, "testdata/gpu.yaml"), "StatefulSet") {
		containers = append(containers, set.Spec.Template.Spec.Containers...)
	}
	for _, c := range containers {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				named[e.ValueFrom.SecretKeyRef.Name+" "+e.ValueFrom.SecretKeyRef.Key] = true
			}
		}
	}
	named["mgrpo-redis-acl users.acl"] = strings.Contains(string(manifest(t, "redis.yaml")), "secretName: mgrpo-redis-acl}")
	if !maps.Equal(made, named) {
		t.Errorf("made: %v\nnamed: %v", made, named)
	}
}
