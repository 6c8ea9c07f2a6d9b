package trainer

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

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

// lender is a further machine of the planner's.
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
	t.Cleanup(func() {
		m.cmd.Process.Kill()
		m.cmd.Wait()
	})
	return m
}

// mustEnd waits for the machine's own end, which is a good one.
func (m *lender) mustEnd(t *testing.T) {
	t.Helper()
	if err := m.cmd.Wait(); err != nil {
		t.Errorf("the machine ended with %v: %s", err, m.out.String())
	}
}

// TestMachinesLearnAsOne: two machines with a device each learn what one machine with two devices learns, bit for bit.
func TestMachinesLearnAsOne(t *testing.T) {
	want, numbers := rankedRun(t)
	dir := t.TempDir()
	cfg := load(t, dir, append(onRanks(2), onMachines(t, 2, 1)...)...)
	other := startMachine(t, cfg, 1)
	seen := mustTrain(t, cfg, Options{})
	other.mustEnd(t)
	sameWeights(t, digests(t, dir, 3), digests(t, want, 3))
	sameNumbers(t, seen.numbers(), numbers)
}
