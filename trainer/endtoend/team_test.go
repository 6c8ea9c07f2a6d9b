package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

const quickstart = "../../examples/quickstart/team.yaml"

// small makes the quickstart run in seconds. The cold start is just long enough that the
// planner delegates and not all groups are degenerate; a few steps have 16 rollouts each.
var small = []string{
	"run.steps=3", "run.checkpoint_every=2", "run.threads=2", "store.timeout=1h",
	"task.queries_per_step=4", "grpo.rollouts=4",
	"agents.planner.optimizer.decay_steps=0", "agents.researcher.optimizer.decay_steps=0",
	"agents.planner.optimizer.warmup=1", "agents.researcher.optimizer.warmup=1",
	"eval.every=2", "eval.queries=12", "eval.samples=2",
	"cold_start.queries=64", "agents.planner.cold_start.steps=40", "agents.researcher.cold_start.steps=60",
	"agents.planner.cold_start.optimizer.warmup=5", "agents.researcher.cold_start.optimizer.warmup=5",
	"agents.planner.cold_start.batch=16", "agents.researcher.cold_start.batch=16",
}

// noColdStart removes the cold start of the small team, so no output has a valid format.
var noColdStart = []string{"cold_start.demonstrations=none", "eval.before=false", "eval.every=0", "eval.queries=2"}

// load reads the quickstart's configuration and applies the small overrides and then sets.
func load(t *testing.T, dir string, sets ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(quickstart, slices.Concat(small, []string{"run.dir=" + dir}, sets))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// openTask returns the configured task.
func openTask(t *testing.T, cfg *config.Config) task.Task {
	t.Helper()
	out, err := assemble.OpenTask(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// toTheEnd returns nil for a run that completed its steps, even if agents without a cold start learned nothing.
func toTheEnd(err error) error {
	if errors.Is(err, trainer.ErrNothingTrained) {
		return nil
	}
	return err
}

// mustTrain trains a team to the end and returns its reports. Train must not change the caller's configuration.
func mustTrain(t *testing.T, cfg *config.Config, opt trainer.TrainOptions) *recorder {
	t.Helper()
	seen := &recorder{}
	opt.Observer = seen
	before := cfg.Dump("/")
	if err := toTheEnd(trainer.Train(t.Context(), cfg, opt)); err != nil {
		t.Fatalf("training: %v\nnotes: %s", err, seen)
	}
	if after := cfg.Dump("/"); !bytes.Equal(before, after) {
		t.Errorf("training changed the configuration from\n%s\nto\n%s", before, after)
	}
	return seen
}

// recorder is an Observer that keeps everything.
type recorder struct {
	metricstest.Recorder
	on func(agent, phase string, done int) // called with each progress report; may be nil
}

func (r *recorder) Progress(p metrics.Progress) {
	if r.on != nil {
		r.on(p.Agent, p.Phase(), p.Done)
	}
}

// find returns a record, and fails the test if it was not reported.
func (r *recorder) find(t *testing.T, kind string, step int64, agent string) metrics.Record {
	t.Helper()
	x, ok := r.Find(kind, step, agent)
	if !ok {
		t.Fatalf("%s did not report %s %d", agent, kind, step)
	}
	return x
}

// inOwnWorkers calls train for both agents at once and returns its error for each.
func inOwnWorkers(train func(name string) error) map[string]error {
	errs := map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range []string{"planner", "researcher"} {
		wg.Go(func() {
			err := train(name)
			mu.Lock()
			defer mu.Unlock()
			errs[name] = err
		})
	}
	wg.Wait()
	return errs
}

// numbers returns all reported values except the clocked ones, by "kind step agent name".
func (r *recorder) numbers() map[string]float64 {
	out := map[string]float64{}
	for _, x := range r.Records {
		at := fmt.Sprintf("%s %d %s ", x.Kind, x.Step, x.Agent)
		for name, v := range x.Values {
			if !metrics.VariesBetweenRuns(name) {
				out[at+name] = v
			}
		}
		for k, n := range x.Counts["calls"] {
			out[at+"calls "+k] = float64(n)
		}
	}
	return out
}

// sameNumbers compares the reports of two runs bit for bit.
func sameNumbers(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[k]; !ok || g != want[k] {
			t.Errorf("%s: %v (reported: %v), want %v", k, g, ok, want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			t.Errorf("%s: %v, but the other run did not report it", k, got[k])
		}
	}
}

// digests returns the SHA-256 of every file of a committed checkpoint, computed from the files, by "agent/file".
func digests(t *testing.T, dir string, step int64) map[string]string {
	t.Helper()
	m, err := archive.Verify(archive.CheckpointsOf(dir).StepDir(step))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, a := range m.Agents {
		for _, f := range a.Files {
			out[a.Name+"/"+f.Path] = f.SHA256
		}
	}
	return out
}

// sameWeights requires bitwise equal weights and optimizer states of every agent.
func sameWeights(t *testing.T, got, want map[string]string) {
	t.Helper()
	compared := 0
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if ext := filepath.Ext(name); ext != ".safetensors" && ext != ".state" {
			continue
		}
		compared++
		if got[name] != want[name] {
			t.Errorf("%s differs", name)
		}
	}
	if compared < 2 || len(got) != len(want) {
		t.Errorf("%d files of %d and %d were compared", compared, len(got), len(want))
	}
}

// stepsIn lists a run's committed checkpoints.
func stepsIn(t *testing.T, dir string) []int64 {
	t.Helper()
	s, err := archive.CheckpointsOf(dir).List()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestMain runs one worker instead of the tests if a test started this binary for that.
func TestMain(m *testing.M) {
	if limit := os.Getenv(followerMemoryEnv); limit != "" && os.Getenv(workerEnv) == "" && slices.Contains(os.Args, "follower") {
		if err := limitMemory(limit); err != nil {
			panic(err)
		}
	}
	trainer.ServeChild()
	os.Setenv("OMP_NUM_THREADS", "1")
	if name := os.Getenv(workerEnv); name != "" {
		os.Exit(workerMain(name))
	}
	code := m.Run()
	os.RemoveAll(wholeRun.dir)
	os.RemoveAll(ranked.dir)
	os.Exit(code)
}

// Environment variables of a test binary that runs as a worker.
const (
	workerEnv       = "MGRPO_TEST_WORKER"        // name of its agent
	workerConfigEnv = "MGRPO_TEST_WORKER_CONFIG" // configuration file
	machineEnv      = "MGRPO_TEST_MACHINE"       // number of a further machine of the agent; empty otherwise
	workerMemoryEnv = "MGRPO_TEST_WORKER_MEMORY" // limit of additional memory in bytes; "" is unlimited

	followerMemoryEnv = "MGRPO_TEST_FOLLOWER_MEMORY" // the same limit for a follower
)

func workerMain(name string) int {
	cfg, err := config.Load(os.Getenv(workerConfigEnv), nil)
	if err == nil {
		err = limitMemory(os.Getenv(workerMemoryEnv))
	}
	seen := &recorder{}
	switch number, _ := strconv.Atoi(os.Getenv(machineEnv)); {
	case err != nil:
	case number > 0:
		err = trainer.ServeMachine(context.Background(), cfg, trainer.MachineOptions{Agent: name, Machine: number, Observer: seen})
		fmt.Print(seen)
	default:
		err = toTheEnd(trainer.Train(context.Background(), cfg, trainer.TrainOptions{Agents: []string{name}, Observer: seen, Resume: true}))
		for k, v := range seen.numbers() {
			fmt.Printf("%s=%x\n", k, v)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// limitMemory makes this process fail to map more than `more` bytes in addition to its current memory.
func limitMemory(more string) error {
	if more == "" {
		return nil
	}
	n, err := strconv.ParseUint(more, 10, 64)
	if err != nil {
		return err
	}
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	pages, err := strconv.ParseUint(strings.Fields(string(text))[0], 10, 64)
	if err != nil {
		return err
	}
	most := pages*uint64(os.Getpagesize()) + n
	return syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: most, Max: most})
}
