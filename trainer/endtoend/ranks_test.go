package endtoend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// onRanks returns settings that train both agents of the small team on `size` devices each.
func onRanks(size int, sets ...string) []string {
	devices := "[" + strings.Join(slices.Repeat([]string{"cpu"}, size), ", ") + "]"
	return append([]string{"agents.planner.devices=" + devices, "agents.researcher.devices=" + devices, "run.threads=1"}, sets...)
}

// ranked is an uninterrupted run of three steps on two ranks per agent. It runs once.
var ranked struct {
	sync.Once
	dir     string
	numbers map[string]float64
}

func rankedRun(t *testing.T) (dir string, numbers map[string]float64) {
	t.Helper()
	ranked.Do(func() {
		var err error
		if ranked.dir, err = os.MkdirTemp("", "mgrpo-ranks-"); err == nil {
			ranked.numbers = mustTrain(t, load(t, ranked.dir, onRanks(2)...), trainer.TrainOptions{}).numbers()
		}
	})
	if ranked.numbers == nil {
		t.Fatal("the uninterrupted run failed")
	}
	return ranked.dir, ranked.numbers
}

// TestRanksRepeat checks that two runs with the same devices end with the same bits, and that their agents learned.
func TestRanksRepeat(t *testing.T) {
	want, wantNumbers := rankedRun(t)
	dir := t.TempDir()
	again := mustTrain(t, load(t, dir, onRanks(2)...), trainer.TrainOptions{})
	sameWeights(t, digests(t, dir, 3), digests(t, want, 3))
	sameNumbers(t, again.numbers(), wantNumbers)
	for _, name := range []string{"planner", "researcher"} {
		if v := again.find(t, "step", 2, name).Values; v["grad_norm"] == 0 || v["groups_degenerate"]+v["groups_empty"] == v["groups"] {
			t.Errorf("%s learned nothing: %v", name, v)
		}
		if at := again.find(t, "step", 2, name).Counts["rank_tokens"]; at["0"] == 0 || at["1"] == 0 {
			t.Errorf("tokens sampled by the ranks of %s: %v", name, at)
		}
		if v := again.find(t, "step", 3, name).Values; !(v["gap_mean"] < 1e-5) || v["rollouts_removed"] != 0 {
			t.Errorf("%s: a gap of %v between samplers and trainer, %v rollouts removed", name, v["gap_mean"], v["rollouts_removed"])
		}
	}
	for _, size := range []int{1, 3} {
		evaluated, err := trainer.Evaluate(t.Context(), load(t, dir, onRanks(size)...), trainer.EvaluateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range evaluated.Records {
			want := again.find(t, "eval", 3, got.Agent)
			for name, v := range want.Values {
				if !metrics.VariesBetweenRuns(name) && got.Values[name] != v {
					t.Errorf("%s: %s is %v with %d devices, but %v with two", got.Agent, name, got.Values[name], size, v)
				}
			}
			if in, by := want.Counts["rank_tokens"], got.Counts["rank_tokens"]; in["1"] == 0 || (by["2"] == 0) != (size == 1) {
				t.Errorf("%s: tokens by rank %v in the run, but %v with %d devices", got.Agent, in, by, size)
			}
		}
	}
}

// TestRanksSampleAlike checks that a step from equal weights has the same conversations, token by
// token with their log-probs, on one device and on two. The cases are a mixture, whose trainer
// uses the recorded experts, and a sampler in bf16 whose cache is too small for its conversations.
// Then there are a hybrid with such a cache, frozen weights, and agents that adapt one model.
func TestRanksSampleAlike(t *testing.T) {
	const mixture = "agents.planner.model={family: qwen3_moe, width: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 192, experts: 8, experts_per_token: 3, expert_ffn: 32, max_positions: 256}"
	const short = "agents.planner.limits={max_tokens: 256, max_new_tokens: 256}"
	base := oneBase(t)
	for name, sets := range map[string][]string{
		"mixture": append([]string{mixture, "grpo.routing_warn=0", "grpo.routing_stop=1e-9"}, noColdStart...),
		"bf16": append([]string{"agents.planner.engine={dtype: bf16, slots: 3, conversations: 8, cache_tokens: 256}", short, "grpo.gap_stop=1"},
			noColdStart...),
		"hybrid": append([]string{"agents.planner.model={family: lfm2, width: 64, layers: 3, heads: 4, kv_heads: 2, head_dim: 16, ffn: 192, max_positions: 256}",
			"agents.planner.engine={slots: 3, conversations: 8, cache_tokens: 256}", short}, noColdStart...),
		"frozen":    append([]string{"agents.planner.train=false"}, noColdStart...),
		"one model": append(append(slices.Clone(base), noColdStart...), "agents.planner.lora.init=gaussian"),
	} {
		t.Run(name, func(t *testing.T) {
			said := map[int]string{}
			for size := range 3 {
				if size == 0 {
					continue
				}
				dir := t.TempDir()
				seen := mustTrain(t, load(t, dir, append(onRanks(size, "run.steps=1"), sets...)...), trainer.TrainOptions{})
				said[size] = readFile(t, filepath.Join(dir, "trajectories", "step-0", "planner.jsonl"))
				r := seen.find(t, "step", 1, "planner")
				if r.Values["routing_differs"] != 0 || r.Values["routing_free"] != 0 {
					t.Errorf("%d: %v", size, r.Values)
				}
				if at := r.Counts["rank_tokens"]; size > 1 && (at["0"] == 0 || at["1"] == 0) {
					t.Errorf("tokens by rank: %v", at)
				}
			}
			if said[1] != said[2] || said[1] == "" {
				t.Errorf("two devices sample differently from one")
			}
		})
	}
}

// TestRanksResume resumes from a checkpoint of two ranks with one, two, three and four ranks. The next step
// rolls out with equal weights, so its ledger and its conversations are equal, token by token with their
// log-probs. Its update differs only in the order of sums. Finally the run with one rank resumes with four.
func TestRanksResume(t *testing.T) {
	from, _ := rankedRun(t)
	steps := map[int]map[string][]float32{}
	rolledOut := map[int]string{}
	var last string
	for _, size := range []int{1, 2, 3, 4} {
		dir := filepath.Join(t.TempDir(), "run")
		if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		mustTrain(t, load(t, dir, onRanks(size, "run.steps=4")...), trainer.TrainOptions{Resume: true})
		for _, name := range []string{"planner.jsonl", "researcher.jsonl"} {
			rolledOut[size] += readFile(t, filepath.Join(dir, "ledger", name)) + readFile(t, filepath.Join(dir, "trajectories", "step-3", name))
		}
		steps[size] = checkpointWeights(t, dir, 4)
		if got := ranksOf(t, dir, 4); got != size {
			t.Errorf("the state of a checkpoint of %d ranks has %d", size, got)
		}
		if size == 1 {
			last = dir
		}
	}
	before, apart := checkpointWeights(t, from, 3), 0.0
	for _, size := range []int{2, 3, 4} {
		if rolledOut[size] != rolledOut[1] {
			t.Errorf("%d ranks roll out differently from one with the same weights", size)
		}
		for name, one := range steps[1] {
			step, off := distance(one, before[name]), distance(steps[size][name], one)
			if step == 0 || off > 1e-2*step {
				t.Errorf("%s: %d ranks end %.3g away from one rank, after a step of %.3g", name, size, off, step)
			}
			apart += off
		}
	}
	if apart == 0 {
		t.Error("several ranks have exactly the sums of one: they do not seem to share the work")
	}
	mustTrain(t, load(t, last, onRanks(4, "run.steps=5")...), trainer.TrainOptions{Resume: true})
	if got := ranksOf(t, last, 5); got != 4 {
		t.Errorf("after 2, 1 and 4 ranks the state has %d", got)
	}
}

// TestRanksContinueAfterStops stops a run on two ranks in its cold start, interrupts it in a step,
// and resumes it. It ends with the same bits as an undisturbed run. The planner trains adapters
// with a KL term to the policy after its cold start; the researcher is frozen after its own.
func TestRanksContinueAfterStops(t *testing.T) {
	sets := onRanks(2, append(slices.Clone(withAdapters), "grpo.reference=cold_start", "agents.researcher.train=false")...)
	wholeDir, dir := t.TempDir(), t.TempDir()
	want := mustTrain(t, load(t, wholeDir, sets...), trainer.TrainOptions{})
	first, second := &recorder{}, &recorder{}
	if err := trainer.Train(t.Context(), load(t, dir, sets...), trainer.TrainOptions{Observer: first, Stop: stopAfter(first, "planner", 7)}); !errors.Is(err, trainer.ErrStopped) {
		t.Fatalf("stopped in the cold start: %v", err)
	}
	if err := trainer.Train(interrupt(t, second, "planner", "step-2", dir), load(t, dir, sets...), trainer.TrainOptions{Observer: second, Resume: true}); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	numbers := second.numbers()
	maps.Copy(numbers, mustTrain(t, load(t, dir, sets...), trainer.TrainOptions{Resume: true}).numbers())
	wanted := want.numbers()
	maps.DeleteFunc(wanted, func(key string, _ float64) bool {
		_, known := numbers[key]
		return !known && strings.HasPrefix(key, "cold_start")
	})
	sameNumbers(t, numbers, wanted)
	sameWeights(t, digests(t, dir, 3), digests(t, wholeDir, 3))
	if kl := want.find(t, "step", 3, "planner").Values["ref_kl_mean"]; kl <= kl0 {
		t.Errorf("the last step's KL is %v", kl)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// ranksOf returns the number of ranks in the planner's state.
func ranksOf(t *testing.T, dir string, step int64) int {
	t.Helper()
	data, err := archive.ReadState(archive.CheckpointsOf(dir).AgentDir(step, "planner"))
	var state struct {
		Ranks int `json:"ranks"`
	}
	if err = errors.Join(err, json.Unmarshal(data, &state)); err != nil {
		t.Fatal(err)
	}
	return state.Ranks
}

// checkpointWeights returns all weights of each agent in a checkpoint.
func checkpointWeights(t *testing.T, dir string, step int64) map[string][]float32 {
	t.Helper()
	out := map[string][]float32{}
	for _, name := range []string{"planner", "researcher"} {
		src, err := weights.Open(archive.CheckpointsOf(dir).AgentDir(step, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, tensor := range src.Config().Layout().Tensors() {
			values := make([]float32, tensor.Numel())
			if err := src.Read(tensor.Name, 0, tensor.Shape[0], values); err != nil {
				t.Fatal(err)
			}
			out[name] = append(out[name], values...)
		}
		if err := src.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// distance returns the Euclidean distance between two vectors.
func distance(a, b []float32) (d float64) {
	for i := range a {
		d += math.Pow(float64(a[i])-float64(b[i]), 2)
	}
	return math.Sqrt(d)
}

// followersOf returns the process ids of a process's followers, by agent and rank.
func followersOf(t *testing.T, parent int) map[string]int {
	t.Helper()
	out := map[string]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended in the meantime
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if args := strings.Split(string(line), "\x00"); len(args) > 3 && args[1] == "follower" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			out[args[2]+" "+args[3]] = pid
		}
	}
	return out
}

// TestFollowerLost kills a follower during a step's rollouts and during its update, or stops it permanently. The
// worker goes back to its checkpoint with new followers, and the run ends with the same bits as an uninterrupted one.
func TestFollowerLost(t *testing.T) {
	want, _ := rankedRun(t)
	const killed, stopped = "rank 1 of planner on cpu was killed", "rank 1 of planner on cpu has sent no heartbeat for 15s"
	for _, c := range []struct {
		signal   syscall.Signal
		in, note string
	}{{syscall.SIGKILL, "step-1", killed}, {syscall.SIGKILL, "learn", killed}, {syscall.SIGSTOP, "step-1", stopped}, {syscall.SIGSTOP, "learn", stopped}} {
		note := c.note
		t.Run(c.in+" "+c.signal.String(), func(t *testing.T) {
			dir := t.TempDir()
			began, struck := false, false // in the second step
			seen := &recorder{}
			seen.on = func(agent, phase string, _ int) {
				if agent != "planner" {
					return
				}
				began = began || phase == "step-1"
				if phase != c.in || !began || struck {
					return
				}
				struck = true
				eventually(t, "there is a checkpoint", func() bool {
					saved, err := archive.CheckpointsOf(dir).List()
					return err != nil || len(saved) > 0
				})
				if pid := followersOf(t, os.Getpid())["planner rank=1"]; pid == 0 || syscall.Kill(pid, c.signal) != nil {
					t.Error("the follower could not be signalled")
				}
			}
			cfg := load(t, dir, onRanks(2, "store.lease=15s", "run.checkpoint_every=1")...)
			if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen}); err != nil {
				t.Fatalf("%v\n%s", err, seen)
			}
			if !strings.Contains(seen.String(), "going back: agent planner: ") || !strings.Contains(seen.String(), note) {
				t.Errorf("the notes do not contain %q:\n%s", note, seen)
			}
			sameWeights(t, digests(t, dir, 3), digests(t, want, 3))
			if left := followersOf(t, os.Getpid()); len(left) > 0 {
				t.Errorf("followers remain: %v", left)
			}
		})
	}
}

// TestFollowerLostAgain kills the follower whenever its agent learns. The second loss at the
// same version ends the run. The error names the follower, and the run can be resumed.
func TestFollowerLostAgain(t *testing.T) {
	seen := &recorder{}
	seen.on = func(agent, phase string, done int) {
		if pid := followersOf(t, os.Getpid())["planner rank=1"]; agent == "planner" && phase == "learn" && pid != 0 {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	cfg := load(t, t.TempDir(), append(noColdStart, onRanks(2, "grpo.minibatches=2")...)...)
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen})
	if err == nil || !trainer.Resumable(err) || !strings.Contains(err.Error(), "agent planner: ") ||
		!strings.Contains(err.Error(), "rank 1 of planner on cpu was killed") || !strings.Contains(err.Error(), "for the second time at version 0") {
		t.Errorf("%v\n%s", err, seen)
	}
	if n := strings.Count(seen.String(), "going back"); n != 1 {
		t.Errorf("went back %d times, want once", n)
	}
}

// TestFollowerLostWhileItLoads kills the follower as soon as it starts. The second loss ends the run, also for the workers of other agents.
func TestFollowerLostWhileItLoads(t *testing.T) {
	url, dir := startRedis(t), t.TempDir()
	sets := append(noColdStart, onRanks(2, "store.url="+url, "store.timeout=1h")...)
	over := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
			if pid := followersOf(t, os.Getpid())["planner rank=1"]; pid != 0 {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	researcher := make(chan error, 1)
	go func() {
		researcher <- trainer.Train(t.Context(), load(t, dir, sets...), trainer.TrainOptions{Agents: []string{"researcher"}, Observer: &recorder{}})
	}()
	err := trainer.Train(t.Context(), load(t, dir, sets...), trainer.TrainOptions{Agents: []string{"planner"}, Observer: &recorder{}})
	close(over)
	killing.Wait()
	if err == nil || !trainer.Resumable(err) || !strings.Contains(err.Error(), "rank 1 of planner on cpu was killed") {
		t.Errorf("planner: %v", err)
	}
	var told *store.StopError
	if err := <-researcher; !errors.As(err, &told) || !trainer.Resumable(err) {
		t.Errorf("researcher: %v", err)
	}
}

// TestFollowerCannotOpen leaves a follower without memory. The worker's error names the rank and the device.
func TestFollowerCannotOpen(t *testing.T) {
	t.Setenv(followerMemoryEnv, "1000000")
	cfg := load(t, t.TempDir(), append(noColdStart, onRanks(2)...)...)
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{})
	if err == nil || !strings.HasPrefix(err.Error(), "agent planner: rank 1 of planner on cpu") {
		t.Error(err)
	}
}

// TestWorkerKilled kills a worker with SIGKILL. Its followers end with it, even a stopped one.
func TestWorkerKilled(t *testing.T) {
	cfg := load(t, t.TempDir(), append(noColdStart, "run.arm=single", "run.steps=100000", "run.threads=1", "agents.planner.devices=[cpu, cpu, cpu]")...)
	cmd := workerProcess(t, cfg.Dump("/"), "planner")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var followers map[string]int
	eventually(t, "the worker has two followers", func() bool {
		followers = followersOf(t, cmd.Process.Pid)
		return len(followers) == 2
	})
	syscall.Kill(followers["planner rank=2"], syscall.SIGSTOP)
	cmd.Process.Kill()
	cmd.Wait()
	for name, pid := range followers {
		eventually(t, name+" ends with its worker", func() bool { return hasEnded(pid) })
	}
}

// hasEnded reports whether a process has ended, even if its parent has not waited for it.
func hasEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// eventually waits, for at most a minute, until is() is true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 600 {
		if is() {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("not true within a minute: %s", what)
}
