package endtoend

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// eachAlone trains two agents, each with a connection of its own, and returns the error of each.
func eachAlone(t *testing.T, dir, url string, terms map[string]term.Term) map[string]error {
	return inOwnWorkers(func(name string) error {
		cfg := load(t, dir, append(noColdStart, "store.url="+url, "run.steps=4", "run.checkpoint_every=1")...)
		return trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: []string{name}, Observer: &recorder{}, Resume: true, Terms: terms})
	})
}

// failingTerm is a loss term that calls fail in the steps from a version on. The error of fail ends the run.
type failingTerm struct {
	version int64
	fail    func(s *torch.Scope) error
}

func (f failingTerm) Loss(s *torch.Scope, b term.Batch) (*torch.Tensor, error) {
	if b.Minibatch.Step < f.version {
		return nil, nil
	}
	return nil, f.fail(s)
}

func (failingTerm) Updated(*torch.Scope, term.Update) (map[string]float64, error) { return nil, nil }

// nanTerm is a loss term that returns NaN as a value for the step's record, which ends the run.
type nanTerm struct{}

func (nanTerm) Loss(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) {
	return b.LogProb.Sum().Scale(0), nil
}

func (nanTerm) Updated(*torch.Scope, term.Update) (map[string]float64, error) {
	return map[string]float64{"head": math.NaN()}, nil
}

// TestOneAgentsErrorEndsTheRun gives the planner a loss term that fails. The planner's worker reports the fault. The
// researcher's worker, on its own connection, ends with an error that names the planner and the reason.
func TestOneAgentsErrorEndsTheRun(t *testing.T) {
	terms := map[string]term.Term{"planner": nanTerm{}}
	errs := eachAlone(t, t.TempDir(), startRedis(t), terms)
	if err := errs["planner"]; err == nil || !strings.HasPrefix(err.Error(), "agent planner: ") || !strings.Contains(err.Error(), "head is NaN") {
		t.Errorf("planner: %v", err)
	}
	var told *store.StopError
	if err := errs["researcher"]; !errors.As(err, &told) || told.Agent != "planner" || told.Kind != store.Failure || !strings.Contains(told.Reason, "head is NaN") {
		t.Errorf("researcher: %v", err)
	}
}

// TestLostGPU checks that a worker whose GPU was lost can be restarted, and the other workers too. If the same version fails again in a new
// process, a restart does not help, and all workers report that. A follower's GPU counts as lost only after its worker has restarted once.
func TestLostGPU(t *testing.T) {
	const cause = "an illegal memory access"
	own := &torch.LostError{Device: "cuda:0", Cause: cause}
	follower := &launch.LostError{Follower: "rank 1 of planner on cuda:1", Output: cause, GPU: true}
	dir, url := t.TempDir(), startRedis(t)
	lose := func(version int64, lost error) (planner, researcher error) {
		terms := map[string]term.Term{"planner": failingTerm{version, func(*torch.Scope) error { return lost }}}
		errs := eachAlone(t, dir, url, terms)
		return errs["planner"], errs["researcher"]
	}
	for _, c := range []struct {
		version int64
		lost    error
		kind    store.StopKind
	}{{1, own, store.Asked}, {2, own, store.Asked}, {2, own, store.Failure}, {3, follower, store.Asked}, {3, follower, store.Failure}} {
		planner, researcher := lose(c.version, c.lost)
		if trainer.Resumable(planner) != (c.kind == store.Asked) || planner == nil || !strings.Contains(planner.Error(), cause) {
			t.Errorf("version %d: the planner ended with %v", c.version, planner)
		}
		var told *store.StopError
		if !errors.As(researcher, &told) || told.Kind != c.kind || told.Agent != "planner" || !strings.Contains(told.Reason, cause) {
			t.Errorf("version %d: the researcher ended with %v", c.version, researcher)
		}
	}
}

// flakyTask is the research task with verifiers that fail in training. Of two main answers to even
// queries, one gets an error and one gets NaN. One sub-answer to an odd query gets NaN.
type flakyTask struct {
	*research.Task
	main, sub atomic.Int32 // number of calls
}

// taught trains a team until most of its answers have a valid format, so that there are answers to verify.
var taught = []string{"agents.planner.cold_start.steps=120", "agents.researcher.cold_start.steps=180"}

var errFlaky = errors.New("the judge is out")

func odd(q task.Query) bool { return q.ID[len(q.ID)-1]%2 == 1 }

func training(q task.Query) bool { return strings.HasPrefix(q.ID, "train-") }

func (f *flakyTask) VerifyMain(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	if training(q) && !odd(q) {
		switch f.main.Add(1) {
		case 1:
			return 0, errFlaky
		case 2:
			return math.NaN(), nil
		}
	}
	return f.Task.VerifyMain(ctx, q, a)
}

func (f *flakyTask) VerifySub(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	if training(q) && odd(q) && f.sub.Add(1) == 1 {
		return math.NaN(), nil
	}
	return f.Task.VerifySub(ctx, q, a)
}

// TestUnverifiedRolloutsAreRemovedWhole checks that both agents remove exactly the rollouts with an unverified answer or sub-answer.
func TestUnverifiedRolloutsAreRemovedWhole(t *testing.T) {
	dir := t.TempDir()
	cfg := load(t, dir, append(taught, "run.steps=1", "eval.before=false")...)
	seen := mustTrain(t, cfg, trainer.TrainOptions{Task: &flakyTask{Task: openTask(t, cfg).(*research.Task)}})
	for _, name := range []string{"planner", "researcher"} {
		v := seen.find(t, "step", 1, name).Values
		if v["rollouts_failed"] != 2 || v["rollouts_removed"] != 3 {
			t.Errorf("%s: %v rollouts failed, %v were removed; want 2 and 3", name, v["rollouts_failed"], v["rollouts_removed"])
		}
	}
	type rollout struct {
		query string
		k     int
	}
	removed := map[rollout]bool{}
	main := readTrajectories(t, dir, "step-0", "planner")
	for _, l := range main {
		if l.Reward == nil {
			removed[rollout{l.Query, l.Rollout}] = true
		}
	}
	if len(main) != 16 || len(removed) != 3 {
		t.Fatalf("%d rollouts, %v removed, want 16 and 3", len(main), removed)
	}
	for _, l := range readTrajectories(t, dir, "step-0", "researcher") {
		if gone := removed[rollout{l.Query, l.Rollout}]; gone != (l.Reward == nil) {
			t.Errorf("%s: rollout removed: %v, but in a group: %v", l.ID, gone, l.Reward != nil)
		}
	}
}

// out is the research task with a verifier that never returns a score.
type out struct{ *research.Task }

func (out) VerifyMain(context.Context, task.Query, task.Attempt) (float64, error) {
	return 0, fmt.Errorf("%w: %s", errFlaky, strings.Repeat("x", 5000))
}

// unscoredTask is the research task with an expert that scores no answers to held-out queries.
type unscoredTask struct{ *research.Task }

func (u unscoredTask) VerifySub(ctx context.Context, q task.Query, a task.Attempt) (float64, error) {
	if !training(q) {
		return 0, errFlaky
	}
	return u.Task.VerifySub(ctx, q, a)
}

// onlyStepsHaveExpertScores checks that step 1 has an expert score and that the evaluation
// after it has none, although it called the researcher.
func onlyStepsHaveExpertScores(t *testing.T, seen *recorder) {
	t.Helper()
	e := seen.find(t, "eval", 1, "researcher").Values
	if score, ok := e["expert_mean"]; ok || e["calls_mean"] == 0 {
		t.Errorf("expert score %v, %v calls per rollout", score, e["calls_mean"])
	}
	if _, ok := seen.find(t, "step", 1, "researcher").Values["expert_mean"]; !ok {
		t.Error("the step has no expert score, although its calls have scores")
	}
}

// TestNoExpertScoreWithoutParts checks the case that sub-agents' answers are compared with parts, but a held-out question has no parts. Its
// sub-answers are not verified and its evaluation has no expert score. Training answers are verified.
func TestNoExpertScoreWithoutParts(t *testing.T) {
	cfg := load(t, t.TempDir(), "run.steps=1")
	real := openTask(t, cfg)
	cfg.Task.Expert.Kind = "parts" // the queries of this task have none
	seen := mustTrain(t, cfg, trainer.TrainOptions{Task: unscoredTask{real.(*research.Task)}})
	onlyStepsHaveExpertScores(t, seen)
	if notes := seen.String(); strings.Contains(notes, "expert score unknown") || strings.Contains(notes, errFlaky.Error()) {
		t.Errorf("an answer was verified: %s", notes)
	}
}

// TestNoExpertScoreOfUnscoredCalls checks that an evaluation whose calls have no scores has no expert score and reports why.
func TestNoExpertScoreOfUnscoredCalls(t *testing.T) {
	cfg := load(t, t.TempDir(), "run.steps=1")
	seen := mustTrain(t, cfg, trainer.TrainOptions{Task: unscoredTask{openTask(t, cfg).(*research.Task)}})
	onlyStepsHaveExpertScores(t, seen)
	if notes := seen.String(); !strings.Contains(notes, "evaluation 1: expert score unknown: ") || !strings.Contains(notes, errFlaky.Error()) {
		t.Errorf("the notes do not mention it: %s", notes)
	}
}

// TestTooManyRemovedEndTheRun checks that a verifier that always fails ends the run after three steps, with its own error, which
// is also in the ledgers. With grpo.max_removed: 1 the run continues. An evaluation without an accuracy cannot become the best.
func TestTooManyRemovedEndTheRun(t *testing.T) {
	dir := t.TempDir()
	broken := out{openTask(t, load(t, dir)).(*research.Task)}
	seen := &recorder{}
	err := trainer.Train(t.Context(), load(t, dir, "run.steps=5", "eval.every=1", "grpo.max_removed=0"), trainer.TrainOptions{Task: broken, Observer: seen})
	const want = ": step 3: " // of whichever agent says it first
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), errFlaky.Error()) || !strings.Contains(err.Error(), "grpo.max_removed") {
		t.Fatalf("%v; want %s …", err, want)
	}
	if len(err.Error()) > 1000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	lost := map[string]int{}
	for _, name := range []string{"planner", "researcher"} {
		ledger, err := os.ReadFile(filepath.Join(dir, "ledger", name+".jsonl"))
		if lost[name] = strings.Count(string(ledger), errFlaky.Error()); err != nil || strings.Count(string(ledger), "\n") != 3 {
			t.Errorf("the ledger of %s: %v\n%s", name, err, ledger)
		}
	}
	if lost["planner"] < 3 || lost["planner"] != lost["researcher"] {
		t.Errorf("the ledgers name the verifier's error %v times; want one for each removed rollout", lost)
	}
	e := seen.find(t, "eval", 1, "planner")
	if _, ok := e.Values["accuracy"]; ok || !strings.HasPrefix(e.Unknown, "accuracy unknown: ") || !strings.Contains(e.Unknown, errFlaky.Error()) {
		t.Errorf("evaluation: %v, %q", e.Values, e.Unknown)
	}
	for _, name := range []string{"accuracy_std", "pass_at_2"} {
		if v, ok := e.Values[name]; ok {
			t.Errorf("%s is %v although answers have no score", name, v)
		}
	}

	dir = t.TempDir()
	seen = mustTrain(t, load(t, dir, "run.steps=4", "eval.every=1", "grpo.max_removed=1"), trainer.TrainOptions{Task: broken})
	if v := seen.find(t, "step", 4, "planner").Values["rollouts_removed"]; v == 0 {
		t.Error("no rollout was removed")
	}
	m, err := archive.CheckpointsOf(dir).Latest()
	if err != nil {
		t.Fatal(err)
	}
	if best := archive.EvaluationsOf(m).Best; best != nil {
		t.Errorf("version %d is the best although its accuracy is unknown", best.Version)
	}
}

// TestLedgerHasReasonOfUnscoredCall checks that the ledgers contain the reason why a call has no score.
func TestLedgerHasReasonOfUnscoredCall(t *testing.T) {
	dir := t.TempDir()
	cfg := load(t, dir, append(taught, "run.steps=1", "eval.before=false")...)
	mustTrain(t, cfg, trainer.TrainOptions{Task: &flakyTask{Task: openTask(t, cfg).(*research.Task)}})
	for _, name := range []string{"planner", "researcher"} {
		ledger, err := os.ReadFile(filepath.Join(dir, "ledger", name+".jsonl"))
		if n := strings.Count(string(ledger), "a call has no score: researcher: "); err != nil || n != 1 {
			t.Errorf("the ledger of %s has the reason %d times, want once: %v\n%s", name, n, err, ledger)
		}
	}
}

func readTrajectories(t *testing.T, dir, phase, name string) (lines []archive.Line) {
	t.Helper()
	f, err := os.Open(filepath.Join(archive.TrajectoriesDir(dir), phase, name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var l archive.Line
		if err := json.Unmarshal(scan.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// TestNothingToLearn trains a team that produces nothing valid and never delegates. Every group
// is degenerate or empty, versions advance, and weights and optimizers stay bitwise equal.
func TestNothingToLearn(t *testing.T) {
	initial, dir := t.TempDir(), t.TempDir()
	mustTrain(t, load(t, initial, append(noColdStart, "run.steps=0", "agents.planner.optimizer.warmup=0", "agents.researcher.optimizer.warmup=0")...), trainer.TrainOptions{})
	seen := mustTrain(t, load(t, dir, append(noColdStart, "run.steps=2")...), trainer.TrainOptions{})
	sameWeights(t, digests(t, dir, 2), digests(t, initial, 0))
	for step := range int64(2) {
		p, r := seen.find(t, "step", step+1, "planner").Values, seen.find(t, "step", step+1, "researcher").Values
		if p["groups_degenerate"] != 4 || p["updates"] != 4 || p["updates_skipped"] != 4 {
			t.Errorf("planner: %v", p)
		}
		if r["groups_empty"] != 4 || r["trajectories"] != 0 || r["updates_skipped"] != 4 {
			t.Errorf("researcher: %v", r)
		}
	}
}

// TestRefusedUpdates sets an entropy weight that overflows float32 gradients. Every update is
// refused, the weights stay, the batches are kept, and the third such step ends the run.
func TestRefusedUpdates(t *testing.T) {
	initial, dir := t.TempDir(), t.TempDir()
	mustTrain(t, load(t, initial, append(noColdStart, "run.steps=0", "agents.planner.optimizer.warmup=0", "agents.researcher.optimizer.warmup=0")...), trainer.TrainOptions{})
	seen := &recorder{}
	cfg := load(t, dir, append(noColdStart, "run.steps=9", "run.checkpoint_every=1", "grpo.entropy_coef=1e42")...)
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen})
	if err == nil || !strings.Contains(err.Error(), "agent planner: step 3: updates were refused in 3 consecutive steps") {
		t.Fatalf("%v", err)
	}
	sameWeights(t, digests(t, dir, 2), digests(t, initial, 0))
	for step := range int64(2) {
		v := seen.find(t, "step", step+1, "planner").Values
		if v["updates_failed"] != 4 || v["updates_skipped"] != 0 {
			t.Errorf("step %d: %v updates failed, %v were skipped", step+1, v["updates_failed"], v["updates_skipped"])
		}
	}
	kept, err := os.ReadFile(filepath.Join(dir, "failed", "step-2-planner-update-4.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		Tokens    []int32  `json:"tokens"`
		Behaviour []string `json:"behaviour"`
	}
	first, _, _ := strings.Cut(string(kept), "\n")
	if err := json.Unmarshal([]byte(first), &line); err != nil || len(line.Tokens) == 0 || len(line.Tokens) != len(line.Behaviour) {
		t.Errorf("the kept batch: %v: %s", err, first)
	}
	if strings.Count(string(kept), "\n") != 8 { // half of 4 queries x 4 rollouts
		t.Errorf("%d sequences were kept", strings.Count(string(kept), "\n"))
	}
}

// TestGapIsOfTheFirstUpdate checks that later updates, which have moved the policy, do not count towards the gap.
func TestGapIsOfTheFirstUpdate(t *testing.T) {
	seen := mustTrain(t, load(t, t.TempDir(), "run.steps=1", "eval.before=false"), trainer.TrainOptions{})
	v := seen.find(t, "step", 1, "researcher").Values
	if v["ratio_max"] < 1.001 {
		t.Fatalf("the policy hardly moved in the step: largest ratio %v", v["ratio_max"])
	}
	if gap, ok := v["gap_mean"]; !ok || gap > 1e-5 {
		t.Errorf("gap %v", gap)
	}
}

// TestConversationsCutByWallTime gives the planner's conversations a time limit at which some
// end before a token is sampled. They are cut, and the step trains like any other.
func TestConversationsCutByWallTime(t *testing.T) {
	dir := t.TempDir()
	seen := mustTrain(t, load(t, dir, append(noColdStart, "run.steps=1", "agents.planner.limits.wall_time=1ms")...), trainer.TrainOptions{})
	cut := 0
	for _, l := range readTrajectories(t, dir, "step-0", "planner") {
		if l.Finish == agent.FinishWall && !l.FormatValid {
			cut++
		}
	}
	if v := seen.find(t, "step", 1, "planner").Values; cut == 0 || v["trajectories"] != 16 {
		t.Errorf("%d conversations were cut, %v trajectories remain", cut, v["trajectories"])
	}
}

// TestMemoryFull requests more memory than the machine has, in a step and when a worker opens
// its engine. Every agent's error names the keys to lower. With lower values the run continues.
func TestMemoryFull(t *testing.T) {
	inStep := "lower agents.planner.engine.micro_batch_tokens (4096) or agents.planner.engine.slots (16), and resume the run"
	dir, url := t.TempDir(), startRedis(t)
	full := failingTerm{fail: func(s *torch.Scope) error {
		s.Zeros(torch.Float32, 1<<45)
		return nil
	}}
	err := trainer.Train(t.Context(), load(t, t.TempDir(), noColdStart...), trainer.TrainOptions{Terms: map[string]term.Term{"planner": full}})
	if err == nil || !strings.HasPrefix(err.Error(), "agent planner: ") || !strings.Contains(err.Error(), "torch: ") || !strings.Contains(err.Error(), inStep) {
		t.Errorf("in a step: %v", err)
	}

	both := func(memory, slots string) (planner, researcher error) { // memory limits the planner
		sets := append(noColdStart, "run.checkpoint_every=1", "store.url="+url)
		var said bytes.Buffer
		cmd := workerProcess(t, load(t, dir, append(sets, "agents.planner.engine.slots="+slots)...).Dump("/"), "planner")
		cmd.Env, cmd.Stderr = append(cmd.Env, workerMemoryEnv+"="+memory), &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		researcher = toTheEnd(trainer.Train(t.Context(), load(t, dir, sets...), trainer.TrainOptions{Agents: []string{"researcher"}, Observer: &recorder{}}))
		if err := cmd.Wait(); err != nil {
			planner = errors.New(said.String())
		}
		return planner, researcher
	}
	planner, researcher := both("3000000000", "65536")
	inEngine := "lower agents.planner.engine.slots (65536) or agents.planner.engine.micro_batch_tokens (4096), and resume the run"
	if planner == nil || !strings.Contains(planner.Error(), inEngine) {
		t.Errorf("the planner: %v", planner)
	}
	var told *store.StopError
	if !errors.As(researcher, &told) || told.Agent != "planner" || told.Kind != store.Failure || !strings.Contains(told.Reason, inEngine) {
		t.Errorf("the researcher: %v", researcher)
	}
	if planner, researcher := both("", "16"); planner != nil || researcher != nil {
		t.Errorf("with lower settings: %v, %v", planner, researcher)
	}
}

// TestBrokenScorerStopsBeforeColdStart checks that a failing scoring program ends the run with its error before the cold start.
func TestBrokenScorerStopsBeforeColdStart(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte(`{"question": "what?", "answer": "this"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(filepath.Join(dir, "team.yaml"), []byte(`
run: {name: x, dir: run}
task:
  kind: jsonl
  train: rows.jsonl
  eval: rows.jsonl
  verifier: {kind: program, command: [sh, -c, "read line; echo '{\"id\": 1, \"error\": \"the reward model is not here\"}'"]}
agents: {writer: {role: main, model: nowhere}}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = trainer.Train(t.Context(), cfg, trainer.TrainOptions{})
	if err == nil || !strings.Contains(err.Error(), "the reference answer of question train-row-000001 has no score") || !strings.Contains(err.Error(), "the reward model is not here") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "run")); err == nil {
		t.Error("the run began")
	}
}
