package endtoend

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// onMachines returns settings for a planner on `count` machines with `size` devices each. The
// first is at 127.0.0.2, the others at 127.0.0.1.
func onMachines(t *testing.T, count, size int) []string {
	t.Helper()
	port, err := redisserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("known to these machines alone\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	devices := "agents.planner.devices=[" + strings.TrimSuffix(strings.Repeat("cpu, ", size), ", ") + "]"
	return []string{devices, "agents.planner.machines={count: " + strconv.Itoa(count) + ", address: '" + net.JoinHostPort("127.0.0.2", port) + "', key_file: " + key + "}"}
}

// machineProcess is a process of the planner's on a machine of its own: a further machine, or the worker.
type machineProcess struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// startMachine starts one. It is killed at the test's end.
func startMachine(t *testing.T, cfg *config.Config, number int) *machineProcess {
	t.Helper()
	m := &machineProcess{cmd: workerProcess(t, cfg.Dump("/"), "planner")}
	m.cmd.Env = append(m.cmd.Env, machineEnv+"="+strconv.Itoa(number))
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	return m
}

func (m *machineProcess) kill() {
	m.cmd.Process.Kill()
	m.cmd.Wait()
}

// mustEnd waits for the process's own end, which is a good one.
func (m *machineProcess) mustEnd(t *testing.T) {
	t.Helper()
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("the machine ended with %v: %s", err, m.out.String())
	}
}

// TestTwoMachinesEqualOne resumes from a checkpoint on two machines with two devices each, and on one machine with four. The results
// are bitwise equal. TestMachinesLost compares two machines with one device each with one machine with two, from the beginning.
func TestTwoMachinesEqualOne(t *testing.T) {
	from, _ := rankedRun(t)
	var dirs []string
	var seen []*recorder
	met := false
	for _, on := range [][]string{{"agents.planner.devices=[cpu, cpu, cpu, cpu]"}, onMachines(t, 2, 2)} {
		dir := filepath.Join(t.TempDir(), "run")
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		cfg, r := load(t, dir, append(onRanks(1, "run.steps=4"), on...)...), &recorder{}
		if cfg.Agent("planner").Machines.Count == 2 {
			other := startMachine(t, cfg, 1)
			defer other.mustEnd(t)
			r.on = func(agent, phase string, _ int) {
				if !met && agent == "planner" && phase == "learn" {
					met = true
					checkMeeting(t, other)
				}
			}
		}
		if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Resume: true, Observer: r}); err != nil {
			t.Fatalf("%v\n%s", err, r)
		}
		dirs, seen = append(dirs, dir), append(seen, r)
	}
	if !met {
		t.Error("checkMeeting was never called")
	}
	sameWeights(t, digests(t, dirs[1], 4), digests(t, dirs[0], 4))
	sameNumbers(t, seen[1].numbers(), seen[0].numbers())
	sameLedgers(t, dirs[1], dirs[0])
}

// checkMeeting holds where ranks have connections to each other against their machines'
// addresses: rank 1, of this machine, is at 127.0.0.2, and rank 2, of the other, is not.
func checkMeeting(t *testing.T, other *machineProcess) {
	t.Helper()
	here, there := followersOf(t, os.Getpid())["planner rank=1"], followersOf(t, other.cmd.Process.Pid)["planner rank=2"]
	if here == 0 || there == 0 {
		t.Errorf("rank 1 is process %d, rank 2 is process %d, want both", here, there)
		return
	}
	if at := addressesOf(t, here); !at["127.0.0.2"] {
		t.Errorf("rank 1 has the addresses %v", at)
	}
	if at := addressesOf(t, there); !at["127.0.0.1"] || at["127.0.0.2"] {
		t.Errorf("rank 2 has the addresses %v", at)
	}
}

// addressesOf returns the local addresses of a process's TCP sockets.
func addressesOf(t *testing.T, pid int) map[string]bool {
	t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Error(err)
	}
	local := map[string]string{} // by inode
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && len(f[1]) == 13 { // in the CPU's byte order, little-endian
			if b, err := hex.DecodeString(f[1][:8]); err == nil {
				slices.Reverse(b)
				local["socket:["+f[9]+"]"] = net.IP(b).String()
			}
		}
	}
	out := map[string]bool{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		if to, err := os.Readlink(file); err == nil && local[to] != "" {
			out[local[to]] = true
		}
	}
	return out
}

// sameLedgers fails if two runs did not train on the same rollouts.
func sameLedgers(t *testing.T, got, want string) {
	t.Helper()
	for _, name := range []string{"planner.jsonl", "researcher.jsonl"} {
		if readFile(t, filepath.Join(got, "ledger", name)) != readFile(t, filepath.Join(want, "ledger", name)) {
			t.Errorf("%s trained on different rollouts", name)
		}
	}
}

// TestMachinesLost kills, in different steps, a follower on the second machine, that machine's process, and the worker, and restarts
// the processes. Two machines with one device each end with the same bits as an uninterrupted run on one machine with two devices.
func TestMachinesLost(t *testing.T) {
	want, _ := rankedRun(t)
	dir := t.TempDir()
	cfg := load(t, dir, append(onRanks(2, "store.url="+startRedis(t), "store.lease=15s", "run.checkpoint_every=1"), onMachines(t, 2, 1)...)...)
	worker, further := startMachine(t, cfg, 0), startMachine(t, cfg, 1)
	strikes := []func(){
		func() {
			if pid := followersOf(t, further.cmd.Process.Pid)["planner rank=1"]; pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				t.Error("the follower could not be killed")
			}
		},
		func() {
			pid := followersOf(t, further.cmd.Process.Pid)["planner rank=1"]
			further.kill()
			eventually(t, "the follower ends with its machine's process", func() bool { return hasEnded(pid) })
			further = startMachine(t, cfg, 1)
		},
		func() {
			worker.kill()
			worker = startMachine(t, cfg, 0)
		},
	}
	struck := 0
	seen := &recorder{}
	seen.on = func(agent, phase string, _ int) { // called by the researcher's worker, which is this process
		if struck < len(strikes) && phase == fmt.Sprint("step-", struck) {
			strikes[struck]()
			struck++
		}
	}
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: []string{"researcher"}, Observer: seen}); err != nil {
		t.Fatalf("%v\n%s\n%s", err, seen, worker.out.String())
	}
	worker.mustEnd(t)
	further.mustEnd(t)
	if struck != len(strikes) {
		t.Errorf("%d of %d strikes", struck, len(strikes))
	}
	sameWeights(t, digests(t, dir, 3), digests(t, want, 3))
	sameLedgers(t, dir, want)
}

// TestFollowerReportsMissingFile checks that a follower reports a missing file, so that rank 0
// can explain the requirements of several machines.
func TestFollowerReportsMissingFile(t *testing.T) {
	_, err := assemble.ModelOf(load(t, t.TempDir(), "agents.planner.model=models/of-another-machine"), &config.Agent{Model: config.Model{Path: "models/of-another-machine"}}, nil)
	if told := launch.Failed(fmt.Errorf("opening: %w", err)); err == nil || !told.Missing || !strings.Contains(told.Error, "models/of-another-machine") {
		t.Errorf("for %v it reports %+v", err, told)
	}
}
