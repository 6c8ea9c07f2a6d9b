package trainer

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/store"
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

// TestStop asks for a stop in the second step: it is finished, a checkpoint of version 2 is there, nothing
// of the third has begun, and the run goes on to the same end.
func TestStop(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, "run.steps=4", "run.checkpoint_every=0")
	err := Train(t.Context(), cfg, Options{Observer: seen, Stop: stopIn(seen, "researcher", "step-1")})
	if !errors.Is(err, ErrStopped) {
		t.Fatalf("stopped: %v", err)
	}
	if got := steps(t, dir); got[len(got)-1] != 2 {
		t.Errorf("checkpoints %v", got)
	}
	for _, r := range seen.records {
		if r.Step > 2 || (r.Kind == "eval" && r.Step == 2) {
			t.Errorf("%s %d of %s was reported after the stop", r.Kind, r.Step, r.Agent)
		}
	}
	mustTrain(t, cfg, Options{Resume: true})
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
}

// TestStopInLastStep leaves nothing but the last evaluation for the resumed run, which then has the same
// results as one left alone, and nothing left to resume.
func TestStopInLastStep(t *testing.T) {
	wholeDir, wantNumbers := whole(t)
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, "run.steps=4")
	err := Train(t.Context(), cfg, Options{Observer: seen, Stop: stopIn(seen, "researcher", "step-3")})
	if !errors.Is(err, ErrStopped) {
		t.Fatalf("stopped: %v", err)
	}
	if got := steps(t, dir); got[len(got)-1] != 4 {
		t.Fatalf("checkpoints %v", got)
	}
	numbers := seen.numbers()
	maps.Copy(numbers, mustTrain(t, cfg, Options{Resume: true}).numbers())
	sameNumbers(t, numbers, wantNumbers)
	if got, want := readResults(t, dir, 4), readResults(t, wholeDir, 4); got != want {
		t.Errorf("results %s, want %s", got, want)
	}
	if err := Train(t.Context(), cfg, Options{Resume: true, Observer: seen}); err == nil || !strings.Contains(err.Error(), "nothing is left to train") {
		t.Errorf("resumed once more: %v", err)
	}
}

// TestForeignPlan: a phase that is there with another plan sends the team back once; if that does not help, it is
// the error.
func TestForeignPlan(t *testing.T) {
	url := startRedis(t)
	cfg := load(t, t.TempDir(), append(untaught, "store.url="+url, "store.timeout=5s")...)
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
	err = Train(t.Context(), cfg, Options{Observer: seen})
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) || Resumable(err) || strings.Count(seen.String(), "going back: ") != 1 {
		t.Errorf("%v\nnotes: %s", err, seen)
	}
}

// TestStopBeforeTheOthersCome: nothing is in flight yet that could be finished.
func TestStopBeforeTheOthersCome(t *testing.T) {
	cfg := load(t, t.TempDir(), append(untaught, "store.url="+startRedis(t), "store.timeout=5m")...)
	stop := make(chan struct{})
	time.AfterFunc(500*time.Millisecond, func() { close(stop) })
	err := Train(t.Context(), cfg, Options{Agents: []string{"planner"}, Observer: &recorder{}, Stop: stop})
	if !errors.Is(err, ErrStopped) || !Resumable(err) {
		t.Errorf("ended with %v", err)
	}
}

// TestStopWithADeadPartner kills the researcher in a step: the planner, asked to stop, does not wait for it.
func TestStopWithADeadPartner(t *testing.T) {
	dir, url := t.TempDir(), startRedis(t)
	sets := append(untaught, "store.url="+url, "store.lease=1s", "store.timeout=5m", "run.threads=1")
	cfg := load(t, dir, sets...)
	file := filepath.Join(t.TempDir(), "team.yaml")
	if err := os.WriteFile(file, cfg.Dump("/"), 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	partner := exec.Command(self)
	partner.Env = append(os.Environ(), workerEnv+"=researcher", workerConfigEnv+"="+file)
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
	err = Train(t.Context(), cfg, Options{Agents: []string{"planner"}, Observer: seen, Stop: stop})
	partner.Wait()
	if !errors.Is(err, ErrStopped) || !strings.Contains(seen.String(), "no worker of researcher is alive") {
		t.Errorf("ended with %v\nnotes: %s", err, seen)
	}
}

// TestStopInColdStart stops before there was a step: the cold start is kept and not done again.
func TestStopInColdStart(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, "run.steps=4")
	err := Train(t.Context(), cfg, Options{Observer: seen, Stop: stopIn(seen, "planner", "cold start")})
	if !errors.Is(err, ErrStopped) {
		t.Fatalf("stopped: %v", err)
	}
	if got := steps(t, dir); !slices.Equal(got, []int64{0}) {
		t.Fatalf("checkpoints %v, want one of version 0", got)
	}
	again := mustTrain(t, cfg, Options{Resume: true})
	for _, r := range again.records {
		if r.Kind == "cold_start" {
			t.Errorf("%s had its cold start again", r.Agent)
		}
	}
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
}

// TestStopReachesTheOthers asks the sub-agent's worker alone: both stop at the same version.
func TestStopReachesTheOthers(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, url, seen := t.TempDir(), startRedis(t), &recorder{}
	stop := stopIn(seen, "researcher", "step-0")
	run := func(resume bool) error {
		var g errgroup.Group
		for _, name := range []string{"planner", "researcher"} {
			g.Go(func() error {
				opt := Options{Agents: []string{name}, Observer: seen, Resume: resume}
				if name == "researcher" && !resume {
					opt.Stop = stop
				}
				err := Train(t.Context(), load(t, dir, "run.steps=4", "run.threads=1", "store.url="+url), opt)
				if !resume && !errors.Is(err, ErrStopped) {
					t.Errorf("%s ended with: %v", name, err)
				} else if resume && err != nil {
					return err
				}
				return nil
			})
		}
		return g.Wait()
	}
	if err := run(false); err != nil {
		t.Fatal(err)
	}
	got := steps(t, dir)
	if last := got[len(got)-1]; last < 1 || last > 3 {
		t.Fatalf("checkpoints %v", got)
	}
	if err := run(true); err != nil { // the stop is forgotten
		t.Fatal(err)
	}
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
}
