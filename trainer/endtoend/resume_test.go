package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// whole returns the folder and the numbers of an uninterrupted run of four steps. It runs once.
func whole(t *testing.T) (dir string, numbers map[string]float64) {
	t.Helper()
	wholeRun.Do(func() {
		if wholeRun.dir, wholeRun.err = os.MkdirTemp("", "mgrpo-whole-"); wholeRun.err == nil {
			wholeRun.numbers = mustTrain(t, load(t, wholeRun.dir, "run.steps=4"), trainer.TrainOptions{}).numbers()
		}
	})
	if wholeRun.err != nil || wholeRun.numbers == nil {
		t.Fatalf("the uninterrupted run failed: %v", wholeRun.err)
	}
	return wholeRun.dir, wholeRun.numbers
}

var wholeRun struct {
	sync.Once
	dir     string
	numbers map[string]float64
	err     error
}

// interrupt returns a context that ends when an agent makes progress in a phase, but not before
// the run has a complete checkpoint, which is written during the steps.
func interrupt(t *testing.T, seen *recorder, agent, phase, dir string) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	seen.on = func(a, p string, _ int) {
		if a != agent || p != phase || ctx.Err() != nil {
			return
		}
		for t.Context().Err() == nil {
			if steps, err := archive.CheckpointsOf(dir).List(); err != nil || len(steps) > 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}
	return ctx
}

// TestResumeEqualsUninterrupted interrupts a run in its third step and resumes it from the checkpoint
// of the second. The reports, the final weights and the optimizer states equal the uninterrupted run's.
func TestResumeEqualsUninterrupted(t *testing.T) {
	wholeDir, wantNumbers := whole(t)
	dir := t.TempDir()
	first := &recorder{}
	err := trainer.Train(interrupt(t, first, "researcher", "step-2", dir), load(t, dir, "run.steps=4"), trainer.TrainOptions{Observer: first})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	if got := stepsIn(t, dir); got[len(got)-1] != 2 {
		t.Fatalf("checkpoints %v", got)
	}
	second := mustTrain(t, load(t, dir, "run.steps=4"), trainer.TrainOptions{Resume: true})
	numbers := first.numbers()
	maps.Copy(numbers, second.numbers())
	sameNumbers(t, numbers, wantNumbers)
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
	if got, want := readResults(t, dir, 4), readResults(t, wholeDir, 4); got != want {
		t.Errorf("results %s, want %s", got, want)
	}
}

// TestWorkersResume interrupts one of two workers. The other one stops too, and both resume.
func TestWorkersResume(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, url := t.TempDir(), startRedis(t)
	both := func(opt trainer.TrainOptions, ctxOf func(name string) context.Context) map[string]error {
		return inOwnWorkers(func(name string) error {
			opt := opt
			opt.Agents = []string{name}
			return trainer.Train(ctxOf(name), load(t, dir, "run.steps=4", "run.threads=1", "store.url="+url), opt)
		})
	}
	seen := &recorder{}
	interrupted := interrupt(t, seen, "researcher", "step-2", dir)
	errs := both(trainer.TrainOptions{Observer: seen}, func(name string) context.Context {
		if name == "researcher" {
			return interrupted
		}
		return t.Context()
	})
	var told *store.StopError
	if !errors.As(errs["planner"], &told) || told.Agent != "researcher" || told.Kind != store.Asked {
		t.Fatalf("the planner ended with: %v", errs["planner"])
	}
	if !errors.Is(errs["researcher"], context.Canceled) {
		t.Fatalf("the researcher ended with: %v", errs["researcher"])
	}
	for name, err := range both(trainer.TrainOptions{Observer: seen, Resume: true}, func(string) context.Context { return t.Context() }) {
		if err != nil {
			t.Fatalf("%s, resumed: %v", name, err)
		}
	}
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
}

// TestWaitingWorkerOffersWhatIsThere starts a second worker that waits for the place of an agent's first
// worker. This happens if a suspended worker is replaced. The first worker is lost several steps later,
// when the checkpoints that the second one saw have been deleted. The team continues nevertheless.
func TestWaitingWorkerOffersWhatIsThere(t *testing.T) {
	dir, url := t.TempDir(), startRedis(t)
	work := func(ctx context.Context, agent string, seen *recorder) <-chan error {
		cfg := load(t, filepath.Join(dir, agent), append(noColdStart, "run.steps=8", "run.checkpoint_every=1", "run.threads=1", "store.url="+url, "store.lease=1m")...)
		out := make(chan error, 1)
		go func() {
			out <- trainer.Train(ctx, cfg, trainer.TrainOptions{Agents: []string{agent}, Resume: true, Observer: seen})
		}()
		return out
	}
	first, second := &recorder{}, &recorder{}
	ctx, lose := context.WithCancel(t.Context())
	defer lose()
	var successor <-chan error
	first.on = func(agent, phase string, _ int) {
		switch {
		case agent == "planner" && phase == "step-2" && successor == nil:
			// The checkpoint is written during the steps.
			for len(stepsIn(t, filepath.Join(dir, "researcher"))) == 0 && t.Context().Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			successor = work(t.Context(), "researcher", second)
			for !strings.Contains(second.String(), "another worker of researcher is alive") && t.Context().Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
		case agent == "planner" && phase == "step-6":
			lose()
		}
	}
	planner, researcher := work(t.Context(), "planner", first), work(ctx, "researcher", first)
	if err := <-researcher; !errors.Is(err, context.Canceled) || successor == nil {
		t.Fatalf("the first worker ended with: %v", err)
	}
	if err := <-planner; !trainer.Resumable(err) {
		t.Fatalf("the planner ended with: %v", err)
	}
	if got := stepsIn(t, filepath.Join(dir, "researcher")); got[0] < 3 {
		t.Fatalf("the second worker saw one of the checkpoints %v", got)
	}
	planner = work(t.Context(), "planner", first)
	if err := errors.Join(toTheEnd(<-planner), toTheEnd(<-successor)); err != nil {
		t.Fatal(err)
	}
}

// copyRun copies a run's folder, so that a test can damage it.
func copyRun(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "run")
	if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestResumeRefuses(t *testing.T) {
	dir, _ := whole(t)
	for _, c := range []struct {
		name   string
		sets   []string
		resume bool
		want   []string
	}{
		{"a fresh start over checkpoints", []string{"run.steps=4"}, false, []string{"resume the run", "already contains checkpoints of steps"}},
		{"a changed key", []string{"run.steps=5", "grpo.eps_low=0.1"}, true, []string{"grpo.eps_low: 0.2 -> 0.1"}},
		{"another seed and another model", []string{"run.steps=5", "run.seed=7", "agents.planner.model.width=32"}, true,
			[]string{"but differ: agents.planner.model.width: 64 -> 32, run.seed: 0 -> 7;", "A new run can begin with a checkpoint of this one"}},
		{"nothing left", []string{"run.steps=4"}, true, []string{"the run is complete", "raise run.steps"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := &recorder{}
			err := trainer.Train(t.Context(), load(t, dir, c.sets...), trainer.TrainOptions{Resume: c.resume, Observer: seen})
			if err == nil {
				t.Fatal("the run was not refused")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
		})
	}
}

// TestResumeWithOtherSettings resumes with a different rate, schedule, and number of rollouts
// and queries. The following steps use them, the moments stay, and a note names the changes.
func TestResumeWithOtherSettings(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, seen := copyRun(t, wholeDir), &recorder{}
	changed := load(t, dir, "run.steps=5", "grpo.rollouts=6", "task.queries_per_step=3", "grpo.epochs=1", "grpo.minibatches=1",
		"agents.planner.optimizer.lr=1e-5", "agents.planner.optimizer.schedule=cosine", "agents.planner.optimizer.decay_steps=9")
	if err := trainer.Train(t.Context(), changed, trainer.TrainOptions{Resume: true, Observer: seen}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"continues with other settings", "grpo.rollouts: 4 -> 6", "task.queries_per_step: 4 -> 3", "agents.planner.optimizer.lr: ", "agents.planner.optimizer.decay_steps: 4 -> 9", "keep their moments"} {
		if !strings.Contains(seen.String(), want) {
			t.Errorf("no %q in the notes: %s", want, seen)
		}
	}
	v := seen.find(t, "step", 5, "planner").Values
	if v["trajectories"] != 18 || v["updates"] != 1 {
		t.Errorf("step 5 has %v trajectories and %v updates", v["trajectories"], v["updates"])
	}
	if want := changed.Agent("planner").Optimizer; !(v["lr"] > 0 && v["lr"] <= want.LR) {
		t.Errorf("rate %v", v["lr"])
	}
	// A second resume compares with the run's current settings.
	again := &recorder{}
	if err := trainer.Train(t.Context(), load(t, dir, "run.steps=6", "grpo.rollouts=6", "task.queries_per_step=3", "grpo.epochs=1", "grpo.minibatches=1",
		"agents.planner.optimizer.lr=1e-5", "agents.planner.optimizer.schedule=cosine", "agents.planner.optimizer.decay_steps=9"), trainer.TrainOptions{Resume: true, Observer: again}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(again.String(), "other settings") {
		t.Errorf("nothing changed: %s", again)
	}
	// Four steps drew 16 queries. The next ones draw the following queries of the order, three each.
	offers, _, err := archive.CheckpointsOf(dir).Offers()
	if err != nil {
		t.Fatal(err)
	}
	part, _ := offers[0].Agent("planner")
	order := openTask(t, changed)
	for n, line := range ledgerLines(t, filepath.Join(dir, "ledger", "planner.jsonl"), part.Ledger)[4:] {
		for i, r := range line.Rollouts {
			if want := order.Train(int64(16 + 3*n + i/6)).ID; !strings.HasPrefix(r.ID, want+"/") {
				t.Errorf("step %d: rollout %s, want one of query %s", line.Step, r.ID, want)
			}
		}
	}
}

// TestResumeWithAnotherSchedule: a schedule that ends with the run ends where it did when the run began. A warm-up must fit into it, and a
// run that had a constant rate has no such end.
func TestResumeWithAnotherSchedule(t *testing.T) {
	wholeDir, _ := whole(t)
	dir := copyRun(t, wholeDir)
	saved := filepath.Join(dir, "config.yaml")
	before, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	err = trainer.Train(t.Context(), load(t, dir, "run.steps=9", "agents.planner.optimizer.warmup=6"), trainer.TrainOptions{Resume: true})
	if err == nil || !strings.Contains(err.Error(), "agents.planner.optimizer.warmup is 6, but the schedule (linear) ends at step 4") {
		t.Errorf("got %v", err)
	}
	if after, err := os.ReadFile(saved); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the saved configuration changed (%v)", err)
	}
	mustTrain(t, load(t, dir, "run.steps=5", "agents.planner.optimizer.schedule=constant"), trainer.TrainOptions{Resume: true})
	seen := mustTrain(t, load(t, dir, "run.steps=8", "agents.planner.optimizer.schedule=cosine"), trainer.TrainOptions{Resume: true})
	if strings.Contains(seen.String(), "planner: warning: the schedule") {
		t.Errorf("notes: %s", seen)
	}
	if last, first := seen.find(t, "step", 8, "planner").Values["lr"], seen.find(t, "step", 6, "planner").Values["lr"]; !(last < first) {
		t.Errorf("the rate goes from %v to %v, want it to decay", first, last)
	}
}

// TestResumeOfNothing checks that --resume also starts a new run, because a supervisor always uses the same command line.
func TestResumeOfNothing(t *testing.T) {
	dir := t.TempDir()
	seen := mustTrain(t, load(t, dir, append(noColdStart, "run.steps=1")...), trainer.TrainOptions{Resume: true})
	if notes := seen.String(); !strings.Contains(notes, dir+" has no checkpoint yet: the run starts from the beginning") {
		t.Errorf("notes: %s", notes)
	}
	if got := stepsIn(t, dir); !slices.Equal(got, []int64{1}) {
		t.Errorf("checkpoints %v", got)
	}
}

// TestResumePassesDamageOver flips one bit of the newest checkpoint. The run resumes from the
// previous one, reports the reason, and has the same result.
func TestResumePassesDamageOver(t *testing.T) {
	wholeDir, _ := whole(t)
	dir := copyRun(t, wholeDir)
	file := filepath.Join(archive.CheckpointsOf(dir).AgentDir(4, "researcher"), "model.safetensors")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-3] ^= 1
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	seen := &recorder{}
	err = trainer.Train(t.Context(), load(t, dir, "run.steps=4"), trainer.TrainOptions{Resume: true, Observer: seen})
	if err != nil {
		t.Fatal(err)
	}
	if notes := seen.String(); !strings.Contains(notes, "checkpoint of step 4 cannot be used") || !strings.Contains(notes, "researcher/model.safetensors: was changed") {
		t.Errorf("notes: %s", notes)
	}
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
}

// TestResumeWithOtherKernels resumes with a different instruction set, as if the previous one
// had failed its self-test. The CPU is the same, but the bits may differ.
func TestResumeWithOtherKernels(t *testing.T) {
	const other = "portable"
	wholeDir, _ := whole(t)
	before := kernels.ISA()
	if before == other {
		t.Skip("this CPU has no other instruction set")
	}
	if err := kernels.UseISA(other); err != nil {
		t.Fatal(err)
	}
	defer kernels.UseISA(before)
	seen := mustTrain(t, load(t, copyRun(t, wholeDir), "run.steps=5"), trainer.TrainOptions{Resume: true})
	if notes := seen.String(); !strings.Contains(notes, "kernels "+before+", but this one has") || !strings.Contains(notes, "kernels "+other+": bits may differ") {
		t.Errorf("notes: %s", notes)
	}
}

// TestResumeProlongs raises run.steps twice. The learning rates follow the original schedule.
func TestResumeProlongs(t *testing.T) {
	wholeDir, _ := whole(t)
	dir := copyRun(t, wholeDir)
	floor := 5e-4 * 0.1 // the linear schedule ended at step 4
	five, six := load(t, dir, "run.steps=5"), load(t, dir, "run.steps=6")
	for i, cfg := range []*config.Config{five, six, six} {
		last := cfg.Run.Steps
		if i == 2 { // a resume with the same run.steps, because step 6 was lost
			if err := os.RemoveAll(archive.CheckpointsOf(dir).StepDir(6)); err != nil {
				t.Fatal(err)
			}
		}
		seen := mustTrain(t, cfg, trainer.TrainOptions{Resume: true})
		if lr := seen.find(t, "step", last, "planner").Values["lr"]; lr > floor*1.001 || lr < floor*0.999 {
			t.Errorf("step %d: learning rate %v after the schedule's end, want %v", last, lr, floor)
		}
		if notes := seen.String(); !strings.Contains(notes, "ends at step 4") || !strings.Contains(notes, "stays at its floor, 5e-05, after step 4") {
			t.Errorf("notes: %s", notes)
		} else if cure := fmt.Sprintf("set agents.planner.optimizer.decay_steps=%d; for a constant rate, set agents.planner.optimizer.schedule=constant", last); !strings.Contains(notes, cure) {
			t.Errorf("no %q in: %s", cure, notes)
		}
	}
	seen := mustTrain(t, load(t, dir, "run.steps=7", "agents.planner.optimizer.decay_steps=14"), trainer.TrainOptions{Resume: true})
	if lr := seen.find(t, "step", 7, "planner").Values["lr"]; lr < 2*floor || strings.Contains(seen.String(), "planner: warning: the schedule") {
		t.Errorf("with another decay_steps: learning rate %v, notes: %s", lr, seen)
	}
}

// TestResumeOfCompleteRun: a complete run is not continued, so other settings have no effect and are not reported.
func TestResumeOfCompleteRun(t *testing.T) {
	wholeDir, _ := whole(t)
	seen := &recorder{}
	err := trainer.Train(t.Context(), load(t, copyRun(t, wholeDir), "run.steps=4", "grpo.rollouts=6"), trainer.TrainOptions{Resume: true, Observer: seen})
	if !errors.Is(err, trainer.ErrRunComplete) || strings.Contains(seen.String(), "other settings") {
		t.Errorf("%v, notes: %s", err, seen)
	}
}

// TestBestSurvives resumes a run whose results name version 1 as better than all later ones. The results
// of later checkpoints keep that. The best checkpoint and the checkpoint of the cold start are not pruned.
func TestBestSurvives(t *testing.T) {
	wholeDir, _ := whole(t)
	dir := copyRun(t, wholeDir)
	checkpoints := archive.CheckpointsOf(dir)
	if err := os.RemoveAll(checkpoints.StepDir(4)); err != nil {
		t.Fatal(err)
	}
	from, err := archive.Verify(checkpoints.StepDir(2))
	if err != nil {
		t.Fatal(err)
	}
	early := from
	early.Step = 1
	if err := os.CopyFS(checkpoints.StepDir(1), os.DirFS(checkpoints.StepDir(2))); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"manifest.json", "results.json"} {
		if err := os.Remove(filepath.Join(checkpoints.StepDir(1), file)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := checkpoints.Commit(early); err != nil {
		t.Fatal(err)
	}
	if err := checkpoints.At(2).SetResults(json.RawMessage(`{"best":{"version":1,"accuracy":0.9999}}`)); err != nil {
		t.Fatal(err)
	}
	mustTrain(t, load(t, dir, "run.steps=4", "run.checkpoint_every=1"), trainer.TrainOptions{Resume: true})
	if got := readResults(t, dir, 4); !strings.HasSuffix(got, `"evaluated":4,"best":{"version":1,"accuracy":0.9999}}`) {
		t.Errorf("the newest results are %s", got)
	}
	if got := stepsIn(t, dir); !slices.Equal(got, []int64{0, 1, 3, 4}) {
		t.Errorf("checkpoints %v, want the cold start's, the best and the newest two", got)
	}
}

// TestCheckpointGetsLaterEvaluation checks that a checkpoint written before its version's evaluation
// receives the result later. So a resumed run keeps the best version and does not evaluate again.
func TestCheckpointGetsLaterEvaluation(t *testing.T) {
	dir, numbers := whole(t)
	var want archive.Evaluations
	for _, n := range []int64{0, 2, 4} {
		want.Evaluated = &n
		if a := numbers[fmt.Sprintf("eval %d planner accuracy", n)]; a > 0 && (want.Best == nil || a > want.Best.Accuracy) {
			want.Best = &archive.Best{Version: n, Accuracy: a}
		}
		if n == 0 {
			continue // no checkpoint
		}
		encoded, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if got := regexp.MustCompile(`"held_out":"[0-9a-f]{16}",`).ReplaceAllString(readResults(t, dir, n), ""); got != string(encoded) {
			t.Errorf("results of step %d: %s, want %s", n, got, encoded)
		}
	}
	again := copyRun(t, dir)
	if err := os.RemoveAll(archive.CheckpointsOf(again).StepDir(4)); err != nil {
		t.Fatal(err)
	}
	for _, r := range mustTrain(t, load(t, again, "run.steps=4"), trainer.TrainOptions{Resume: true}).Records {
		if r.Kind == "eval" && r.Step == 2 {
			t.Errorf("%s was evaluated again at version 2", r.Agent)
		}
	}
}

// readResults returns a checkpoint's newest record of the run's evaluations, in one line.
func readResults(t *testing.T, dir string, step int64) string {
	t.Helper()
	offers, skipped, err := archive.CheckpointsOf(dir).Offers()
	i := slices.IndexFunc(offers, func(m archive.Manifest) bool { return m.Step == step })
	if err != nil || i < 0 {
		t.Fatalf("no checkpoint of step %d: %v %v", step, skipped, err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, offers[i].Results); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestRefusedSettingsLeaveNothing checks that a worker whose settings the others refuse can join with corrected
// settings. A worker that resumes with different settings than its run gets an error with the path of the old ones.
func TestRefusedSettingsLeaveNothing(t *testing.T) {
	dir, url := t.TempDir(), startRedis(t)
	sets := append(noColdStart, "store.url="+url, "run.steps=1")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	there := make(chan error, 1)
	go func() {
		there <- trainer.Train(ctx, load(t, dir+"/planner", sets...), trainer.TrainOptions{Agents: []string{"planner"}, Observer: &recorder{}})
	}()
	researcher := func(set string) error {
		return trainer.Train(t.Context(), load(t, dir+"/researcher", append(sets, set)...), trainer.TrainOptions{Agents: []string{"researcher"}, Observer: &recorder{}, Resume: true})
	}
	for {
		s, err := store.ReadStatus(t.Context(), store.Options{Run: load(t, dir, sets...).Run.Name, URL: url})
		if err == nil && s.Agents[0].Alive {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := researcher("run.seed=99"); err == nil || !strings.Contains(err.Error(), "run.seed: 99 here") {
		t.Errorf("with another seed: %v", err)
	}
	if err := toTheEnd(researcher("run.steps=1")); err != nil {
		t.Errorf("corrected: %v", err)
	}
	if err := toTheEnd(<-there); err != nil {
		t.Errorf("the planner: %v", err)
	}
	err := researcher("run.seed=99")
	if want := filepath.Join(dir, "researcher", "config.yaml") + ", but differ: run.seed: 0 -> 99; set them back, or choose another run.dir."; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("resumed with another seed: %v", err)
	}
}
