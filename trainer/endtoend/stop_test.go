package endtoend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// stopIn returns a channel that is closed when an agent makes progress in a phase.
func stopIn(seen *recorder, agent, phase string) <-chan struct{} {
	stop := make(chan struct{})
	var once sync.Once
	seen.on = func(a, p string, _ int) {
		if a == agent && p == phase {
			once.Do(func() { close(stop) })
		}
	}
	return stop
}

// TestStop requests a stop in the second step. That step is completed, version 2 has a
// checkpoint, the third step does not begin, and the resumed run has the same result.
func TestStop(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, "run.steps=4", "run.checkpoint_every=0")
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen, Stop: stopIn(seen, "researcher", "step-1")})
	if !errors.Is(err, trainer.ErrStopped) {
		t.Fatalf("stopped: %v", err)
	}
	if got := stepsIn(t, dir); got[len(got)-1] != 2 {
		t.Errorf("checkpoints %v", got)
	}
	for _, r := range seen.Records {
		if r.Step > 2 || (r.Kind == "eval" && r.Step == 2) {
			t.Errorf("%s %d of %s was reported after the stop", r.Kind, r.Step, r.Agent)
		}
	}
	mustTrain(t, cfg, trainer.TrainOptions{Resume: true})
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
}

// TestStopInLastStep leaves only the last evaluation to the resumed run. Then the results equal
// the uninterrupted run's, and the run is complete.
func TestStopInLastStep(t *testing.T) {
	wholeDir, wantNumbers := whole(t)
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, "run.steps=4")
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen, Stop: stopIn(seen, "researcher", "step-3")})
	if !errors.Is(err, trainer.ErrStopped) {
		t.Fatalf("stopped: %v", err)
	}
	if got := stepsIn(t, dir); got[len(got)-1] != 4 {
		t.Fatalf("checkpoints %v", got)
	}
	numbers := seen.numbers()
	maps.Copy(numbers, mustTrain(t, cfg, trainer.TrainOptions{Resume: true}).numbers())
	sameNumbers(t, numbers, wantNumbers)
	if got, want := readResults(t, dir, 4), readResults(t, wholeDir, 4); got != want {
		t.Errorf("results %s, want %s", got, want)
	}
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Resume: true, Observer: seen}); err == nil || !strings.Contains(err.Error(), "the run is complete") {
		t.Errorf("resumed once more: %v", err)
	}
}

// TestOtherPlanOfPhase checks that the team goes back once if the store already has a different
// plan for a phase. The second time, the run ends with that error.
func TestOtherPlanOfPhase(t *testing.T) {
	url := startRedis(t)
	cfg := load(t, t.TempDir(), append(noColdStart, "store.url="+url)...)
	opt, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	raw := redis.NewClient(opt)
	defer raw.Close()
	if err := raw.HSet(t.Context(), "mgrpo:{"+cfg.Run.Name+"}:plan:step-0", "plan", `{"queries":["q"],"rollouts":1}`).Err(); err != nil {
		t.Fatal(err)
	}
	seen := &recorder{}
	err = trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen})
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) || trainer.Resumable(err) || strings.Count(seen.String(), "going back: ") != 1 {
		t.Errorf("%v\nnotes: %s", err, seen)
	}
}

// TestStopWhileWaitingForWorkers checks that a worker that waits for others stops at once, because it has no step to finish.
func TestStopWhileWaitingForWorkers(t *testing.T) {
	cfg := load(t, t.TempDir(), append(noColdStart, "store.url="+startRedis(t), "store.timeout=1h")...)
	stop := make(chan struct{})
	time.AfterFunc(500*time.Millisecond, func() { close(stop) })
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: []string{"planner"}, Observer: &recorder{}, Stop: stop})
	if !errors.Is(err, trainer.ErrStopped) || !trainer.Resumable(err) || !trainer.Resumable(fmt.Errorf("agent planner: policy: %w", &torch.LostError{Device: "cuda:0"})) {
		t.Errorf("ended with %v", err)
	}
}

// TestStopWithADeadPartner kills the researcher in a step. The planner is asked to stop and does not wait for it.
func TestStopWithADeadPartner(t *testing.T) {
	dir, url := t.TempDir(), startRedis(t)
	sets := append(noColdStart, "store.url="+url, "store.lease=1s", "store.timeout=1h", "run.threads=1")
	cfg := load(t, dir, sets...)
	partner := workerProcess(t, cfg.Dump("/"), "researcher")
	if err := partner.Start(); err != nil {
		t.Fatal(err)
	}
	stop, seen := make(chan struct{}), &recorder{}
	var once sync.Once
	seen.on = func(agent, phase string, _ int) {
		if agent == "planner" && phase == "step-0" {
			once.Do(func() {
				partner.Process.Kill()
				close(stop)
			})
		}
	}
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: []string{"planner"}, Observer: seen, Stop: stop})
	partner.Wait()
	if !errors.Is(err, trainer.ErrStopped) || !strings.Contains(seen.String(), "no worker of researcher is alive") {
		t.Errorf("ended with %v\nnotes: %s", err, seen)
	}
}

// stopAfter returns a channel that is closed after `updates` updates of an agent's cold start.
func stopAfter(seen *recorder, agent string, updates int) <-chan struct{} {
	stop := make(chan struct{})
	seen.on = func(a, phase string, done int) {
		if a == agent && phase == "cold start" && done == updates {
			close(stop)
		}
	}
	return stop
}

// coldStarts makes seen record the first update of each agent's cold start, and returns the record.
func coldStarts(seen *recorder) map[string]int {
	var mu sync.Mutex
	first := map[string]int{}
	seen.on = func(agent, phase string, done int) {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := first[agent]; phase == "cold start" && !ok {
			first[agent] = done
		}
	}
	return first
}

// TestStopInColdStart stops a run between two updates of the planner's cold start, resumes it, stops it again, and resumes
// it to its end. It equals an undisturbed run. If AdamW's state is damaged in between, the cold start begins again.
func TestStopInColdStart(t *testing.T) {
	wholeDir, wantNumbers := whole(t)
	dir := t.TempDir()
	cfg := load(t, dir, "run.steps=4")
	numbers := map[string]float64{}
	for _, updates := range []int{7, 15} {
		seen := &recorder{}
		err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen, Stop: stopAfter(seen, "planner", updates), Resume: updates > 7})
		if !errors.Is(err, trainer.ErrStopped) || !strings.Contains(seen.String(), fmt.Sprintf("the cold start was stopped after update %d of 40", updates)) {
			t.Fatalf("stopped: %v\nnotes: %s", err, seen)
		}
		if got := stepsIn(t, dir); len(got) > 0 {
			t.Fatalf("checkpoints %v", got)
		}
		maps.Copy(numbers, seen.numbers())
	}
	damaged := copyRun(t, dir)
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: &recorder{}}); err == nil || !strings.Contains(err.Error(), "already contains a stopped cold start of planner, researcher: resume the run") {
		t.Errorf("started from the beginning: %v", err)
	}
	if err := trainer.Train(t.Context(), load(t, dir, "run.steps=4", "run.seed=9"), trainer.TrainOptions{Observer: &recorder{}, Resume: true}); err == nil || !strings.Contains(err.Error(), "run.seed: 0 -> 9") {
		t.Errorf("resumed with another seed: %v", err)
	}
	again := &recorder{}
	first := coldStarts(again)
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: again, Resume: true}); err != nil {
		t.Fatal(err)
	}
	if first["planner"] != 16 || first["researcher"] == 1 {
		t.Errorf("cold starts continued with the updates %v", first)
	}
	maps.Copy(numbers, again.numbers())
	sameNumbers(t, numbers, wantNumbers)
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
	if left := archive.StoppedColdStarts(dir, cfg.AgentNames()); len(left) > 0 {
		t.Errorf("states of the cold starts of %v remain", left)
	}

	file := filepath.Join(damaged, "cold_start", "planner", "optimizer.state")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-3] ^= 1
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	seen := mustTrain(t, load(t, damaged, "run.steps=4"), trainer.TrainOptions{Resume: true})
	if !strings.Contains(seen.String(), "the cold start begins again with the first update") {
		t.Errorf("notes: %s", seen)
	}
	sameWeights(t, digests(t, damaged, 4), digests(t, wholeDir, 4))
}

// TestStopAfterAnothersColdStart stops the planner's cold start when the researcher, in its own process, has already
// finished its own. The researcher stops too, and neither agent repeats an update. The researcher is frozen afterwards.
func TestStopAfterAnothersColdStart(t *testing.T) {
	url := startRedis(t)
	sets := []string{"run.steps=1", "run.threads=1", "eval.before=false", "agents.researcher.cold_start.steps=3",
		"agents.researcher.cold_start.optimizer.warmup=1", "agents.researcher.train=false"}
	wholeDir, dir := t.TempDir(), t.TempDir()
	mustTrain(t, load(t, wholeDir, sets...), trainer.TrainOptions{})
	through := make(chan struct{})
	run := func(resume bool, stop chan struct{}, seen *recorder) map[string]error {
		return inOwnWorkers(func(name string) error {
			opt := trainer.TrainOptions{Agents: []string{name}, Observer: seen, Resume: resume}
			if name == "planner" {
				opt.Stop = stop
			}
			return trainer.Train(t.Context(), load(t, dir, append(slices.Clone(sets), "store.url="+url)...), opt)
		})
	}
	stop, seen := make(chan struct{}), &recorder{}
	var once, stopOnce sync.Once
	seen.on = func(agent, phase string, done int) {
		switch {
		case agent == "researcher" && phase == "waits for planner":
			once.Do(func() { close(through) })
		case agent == "planner" && phase == "cold start" && done == 5:
			<-through
			stopOnce.Do(func() { close(stop) })
		}
	}
	for name, err := range run(false, stop, seen) {
		if !errors.Is(err, trainer.ErrStopped) {
			t.Errorf("%s ended with: %v", name, err)
		}
	}
	for _, note := range []string{"after update 5 of 40", "after update 3 of 3"} {
		if !strings.Contains(seen.String(), note) {
			t.Errorf("no note %q: %s", note, seen)
		}
	}
	seen = &recorder{}
	first := coldStarts(seen)
	for name, err := range run(true, nil, seen) {
		if err != nil {
			t.Errorf("%s, resumed: %v", name, err)
		}
	}
	if _, again := first["researcher"]; again || first["planner"] != 6 {
		t.Errorf("cold starts continued with the updates %v", first)
	}
	sameWeights(t, digests(t, dir, 1), digests(t, wholeDir, 1))
}

// TestStopReachesColdStarts requests a stop of the researcher's process in its cold start. The
// planner's process, in a longer cold start, also stops.
func TestStopReachesColdStarts(t *testing.T) {
	dir, url, seen := t.TempDir(), startRedis(t), &recorder{}
	stop := stopAfter(seen, "researcher", 2)
	errs := inOwnWorkers(func(name string) error {
		opt := trainer.TrainOptions{Agents: []string{name}, Observer: seen}
		if name == "researcher" {
			opt.Stop = stop
		}
		cfg := load(t, dir, "run.threads=1", "store.url="+url, "cold_start.steps=100000", "agents.planner.cold_start.steps=100000", "agents.researcher.cold_start.steps=100000")
		return trainer.Train(t.Context(), cfg, opt)
	})
	for name, err := range errs {
		if !errors.Is(err, trainer.ErrStopped) {
			t.Errorf("%s ended with: %v", name, err)
		}
	}
	if got := archive.StoppedColdStarts(dir, []string{"planner", "researcher"}); !slices.Contains(got, "researcher") {
		t.Errorf("states of the cold starts of %v are kept\nnotes: %s", got, seen)
	}
}

// TestCancelledInColdStart cancels one worker in its cold start. The others are asked to stop;
// they finish the current update and keep their cold starts. The cancelled worker loses its own.
func TestCancelledInColdStart(t *testing.T) {
	dir, url, seen := t.TempDir(), startRedis(t), &recorder{}
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	var once sync.Once
	seen.on = func(agent, phase string, done int) {
		switch {
		case agent == "planner" && phase == "cold start":
			once.Do(func() { close(begun) })
		case agent == "researcher" && phase == "cold start":
			<-begun
			cancel()
		}
	}
	errs := inOwnWorkers(func(name string) error {
		ctx := ctx
		if name == "planner" {
			ctx = t.Context()
		}
		cfg := load(t, dir, "run.threads=1", "store.url="+url, "agents.planner.cold_start.steps=100000")
		return trainer.Train(ctx, cfg, trainer.TrainOptions{Agents: []string{name}, Observer: seen})
	})
	if err := errs["planner"]; !trainer.Resumable(err) {
		t.Errorf("the planner ended with: %v", err)
	}
	if got := archive.StoppedColdStarts(dir, []string{"planner", "researcher"}); !slices.Equal(got, []string{"planner"}) {
		t.Errorf("states of the cold starts of %v are kept\nnotes: %s", got, seen)
	}
}

// TestStopReachesTheOthers requests a stop only of the sub-agent's worker. Both workers stop at the same version.
func TestStopReachesTheOthers(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, url, seen := t.TempDir(), startRedis(t), &recorder{}
	stop := stopIn(seen, "researcher", "step-0")
	run := func(resume bool) map[string]error {
		return inOwnWorkers(func(name string) error {
			opt := trainer.TrainOptions{Agents: []string{name}, Observer: seen, Resume: resume}
			if name == "researcher" && !resume {
				opt.Stop = stop
			}
			return trainer.Train(t.Context(), load(t, dir, "run.steps=4", "run.threads=1", "store.url="+url), opt)
		})
	}
	for name, err := range run(false) {
		if !errors.Is(err, trainer.ErrStopped) {
			t.Errorf("%s ended with: %v", name, err)
		}
	}
	got := stepsIn(t, dir)
	if last := got[len(got)-1]; last < 1 || last > 3 {
		t.Fatalf("checkpoints %v", got)
	}
	for name, err := range run(true) { // the resumed run does not stop again
		if err != nil {
			t.Fatalf("%s, resumed: %v", name, err)
		}
	}
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
}
