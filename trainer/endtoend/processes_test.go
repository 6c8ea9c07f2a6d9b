package endtoend

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// TestOneProcessEqualsSeveral checks the promise of the store. The team in one process, in two workers, and
// in two operating-system processes with a real server has the same rewards and final weights, bit for bit.
func TestOneProcessEqualsSeveral(t *testing.T) {
	dir := t.TempDir()
	alone := mustTrain(t, load(t, dir), trainer.TrainOptions{})
	want, wantNumbers := digests(t, dir, 3), alone.numbers()
	// The batches depend on timing. But all rollouts of a step begin with the planner at once, and answers return to it one by one.
	for name, least := range map[string]struct {
		inFlight float64
		batches  int
	}{"planner": {8, 4}, "researcher": {2, 2}} {
		inFlight, batches := 0.0, map[string]int64{}
		for step := int64(1); step <= 3; step++ {
			v := alone.find(t, "step", step, name)
			inFlight = max(inFlight, v.Values["in_flight_max"])
			maps.Copy(batches, v.Counts["decode_batch"])
		}
		if inFlight < least.inFlight || len(batches) < least.batches {
			t.Errorf("%s: %v sequences in flight, decode batches of %v: the test compares too little", name, inFlight, batches)
		}
		if v := alone.find(t, "step", 2, name); v.Values["grad_norm"] == 0 || v.Values["groups_degenerate"]+v.Values["groups_empty"] == v.Values["groups"] {
			t.Errorf("%s learned nothing: %v", name, v.Values)
		}
	}
	url := startRedis(t)
	t.Run("workers", func(t *testing.T) {
		dir := t.TempDir()
		var g errgroup.Group
		seen := &recorder{}
		for _, name := range []string{"researcher", "planner"} {
			g.Go(func() error {
				cfg := load(t, dir, "store.url="+url, "run.name=workers")
				return trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: []string{name}, Observer: seen})
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		sameWeights(t, digests(t, dir, 3), want)
		sameNumbers(t, seen.numbers(), wantNumbers)
	})
	t.Run("processes", func(t *testing.T) {
		dir := t.TempDir()
		cfg := load(t, dir, "store.url="+url, "run.name=processes", "run.threads=1")
		got := map[string]float64{}
		for _, out := range runWorkers(t, cfg.Dump("/"), "researcher", "planner") {
			maps.Copy(got, parseNumbers(t, out))
		}
		sameWeights(t, digests(t, dir, 3), want)
		sameNumbers(t, got, wantNumbers)
	})
}

// startRedis runs a server with mgrpo's settings, except that it does not sync its file at once.
func startRedis(t *testing.T) (url string) {
	t.Helper()
	s, err := redisserver.Start("--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Remove)
	return s.URL() + "/0"
}

// workerProcess returns a command that runs this test binary as an agent's worker. It is killed at the end of the test.
func workerProcess(t *testing.T, cfg []byte, agent string) *exec.Cmd {
	t.Helper()
	file := filepath.Join(t.TempDir(), "team.yaml")
	if err := os.WriteFile(file, cfg, 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), workerEnv+"="+agent, workerConfigEnv+"="+file)
	return cmd
}

// runWorkers runs this test binary once per agent and returns their outputs.
func runWorkers(t *testing.T, cfg []byte, agents ...string) []string {
	t.Helper()
	out := make([]string, len(agents))
	var g errgroup.Group
	for i, name := range agents {
		cmd := workerProcess(t, cfg, name)
		g.Go(func() error {
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			out[i] = stdout.String()
			if err != nil {
				return fmt.Errorf("worker of %s: %w: %s", name, err, stderr.String())
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}

// parseNumbers parses the output of workerMain; hexadecimal keeps every bit.
func parseNumbers(t *testing.T, text string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out[name] = v
	}
	return out
}
