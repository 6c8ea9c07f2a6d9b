package trainer

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/store/redisserver"
)

// onMachines has the planner train on so many machines with so many devices each. The first is at 127.0.0.2, the others at 127.0.0.1.
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

// lender is a process of the planner's on a machine of its own: a further machine, or the worker.
type lender struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// startMachine starts one. It is killed at the test's end.
func startMachine(t *testing.T, cfg *config.Config, number int) *lender {
	t.Helper()
	m := &lender{cmd: workerProcess(t, cfg.Dump("/"), "planner")}
	m.cmd.Env = append(m.cmd.Env, machineEnv+"="+strconv.Itoa(number))
	m.cmd.Stdout, m.cmd.Stderr = &m.out, &m.out
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	return m
}

func (m *lender) kill() {
	m.cmd.Process.Kill()
	m.cmd.Wait()
}

// mustEnd waits for the process's own end, which is a good one.
func (m *lender) mustEnd(t *testing.T) {
	t.Helper()
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("the machine ended with %v: %s", err, m.out.String())
	}
}

// TestMachinesLearnAsOne: two machines with a device each learn what one machine with two devices learns, bit for bit, and two with two
// what one with four does from a checkpoint on.
func TestMachinesLearnAsOne(t *testing.T) {
	from, numbers := rankedRun(t)
	dir := t.TempDir()
	cfg := load(t, dir, append(onRanks(2), onMachines(t, 2, 1)...)...)
	other := startMachine(t, cfg, 1)
	seen := mustTrain(t, cfg, Options{})
	other.mustEnd(t)
	sameWeights(t, digests(t, dir, 3), digests(t, from, 3))
	sameNumbers(t, seen.numbers(), numbers)

	var learned []map[string]string
	for _, on := range [][]string{{"agents.planner.devices=[cpu, cpu, cpu, cpu]"}, onMachines(t, 2, 2)} {
		dir := filepath.Join(t.TempDir(), "run")
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		cfg := load(t, dir, append(onRanks(1, "run.steps=4"), on...)...)
		if cfg.Agent("planner").Machines.Count == 2 {
			defer startMachine(t, cfg, 1).mustEnd(t)
		}
		mustTrain(t, cfg, Options{Resume: true})
		learned = append(learned, digests(t, dir, 4))
	}
	sameWeights(t, learned[1], learned[0])
}

// TestMachinesLost kills a follower on a further machine, then that machine's process, then the worker, each in another step, and starts
// the processes again: the run ends with the bits of one that nothing interrupted, and so do the processes.
func TestMachinesLost(t *testing.T) {
	want, _ := rankedRun(t)
	dir := t.TempDir()
	cfg := load(t, dir, append(onRanks(2, "store.url="+startRedis(t), "store.lease=5s", "run.checkpoint_every=1"), onMachines(t, 2, 1)...)...)
	worker, further := startMachine(t, cfg, 0), startMachine(t, cfg, 1)
	strikes := []func(){
		func() {
			if pid := followersOf(t, further.cmd.Process.Pid)["planner rank=1"]; pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				t.Error("there is no follower to strike")
			}
		},
		func() {
			pid := followersOf(t, further.cmd.Process.Pid)["planner rank=1"]
			further.kill()
			eventually(t, "the follower ends with its machine's process", func() bool { return gone(pid) })
			further = startMachine(t, cfg, 1)
		},
		func() {
			worker.kill()
			worker = startMachine(t, cfg, 0)
		},
	}
	struck := 0
	seen := &recorder{}
	seen.on = func(agent, phase string, _ int) { // of the researcher's worker, which is this process
		if struck < len(strikes) && phase == fmt.Sprint("step-", struck) {
			strikes[struck]()
			struck++
		}
	}
	if err := Train(t.Context(), cfg, Options{Agents: []string{"researcher"}, Observer: seen}); err != nil {
		t.Fatalf("%v\n%s\n%s", err, seen, worker.out.String())
	}
	worker.mustEnd(t)
	further.mustEnd(t)
	if struck != len(strikes) {
		t.Errorf("%d of %d strikes", struck, len(strikes))
	}
	sameWeights(t, digests(t, dir, 3), digests(t, want, 3))
}

// TestFollowerMisses: a follower says that a file is not there, so that rank 0 can say what several machines need.
func TestFollowerMisses(t *testing.T) {
	_, err := assemble.ModelOf(load(t, t.TempDir(), "agents.planner.model=models/of-another-machine"), &config.Agent{Model: config.Model{Path: "models/of-another-machine"}})
	if told := refusal(fmt.Errorf("opening: %w", err)); err == nil || !told.Missing || !strings.Contains(told.Error, "models/of-another-machine") {
		t.Errorf("of %v it tells %+v", err, told)
	}
}
