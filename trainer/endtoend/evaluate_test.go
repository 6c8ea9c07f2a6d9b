package endtoend

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// If some rollouts have no score, there is no accuracy.
func TestEvaluationWithoutScores(t *testing.T) {
	const why = "accuracy unknown: 12 of 64 rollouts have no score: the judge is out"
	e := trainer.Evaluation{Samples: 4, Records: []metrics.Record{{Agent: "planner", Unknown: why, Values: map[string]float64{"trajectories": 64, "rollouts_failed": 12}}}}
	if err := e.Err(); err == nil || err.Error() != why {
		t.Errorf("%v, want %s", err, why)
	}
	text := e.String()
	if !strings.Contains(text, why) || strings.Contains(text, "pass@") || strings.Contains(text, "accuracy  ") {
		t.Error(text)
	}
}

func TestEvaluationTable(t *testing.T) {
	e := trainer.Evaluation{Checkpoint: "runs/x/checkpoints/step-000030", Dir: "runs/x/eval/step-000030-4x6", Samples: 6, Records: []metrics.Record{
		{Agent: "planner", Values: map[string]float64{"accuracy": 0.75, "accuracy_std": 0.1, "trajectories": 24, "format_valid": 1},
			Counts: map[string]map[string]int64{"right_samples": {"6": 3, "0": 1}}},
		{Agent: "a-researcher-with-quite-a-long-name", Values: map[string]float64{"expert_mean": 0.5, "trajectories": 40}},
	}}
	if err := e.Err(); err != nil {
		t.Error(err)
	}
	text := e.String()
	for _, want := range []string{"4 queries x 6 samples", "accuracy      0.7500  (standard deviation over the samples 0.1000)",
		"pass@1        0.7500\npass@2        0.7500\npass@4        0.7500\npass@6        0.7500\n", "0.500", "step-000030-4x6/trajectories"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 81 {
			t.Errorf("wider than 80: %q", line)
		}
	}
}

// TestEvaluationThatCannotBeSaved checks that the table does not name a folder into which the trajectories could not be written.
func TestEvaluationThatCannotBeSaved(t *testing.T) {
	dir := t.TempDir()
	cfg := load(t, dir, append(noColdStart, "run.steps=1", "run.checkpoint_every=1")...)
	mustTrain(t, cfg, trainer.TrainOptions{})
	first, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{})
	if err != nil || !strings.Contains(first.String(), "trajectories  "+first.Dir) {
		t.Fatalf("%v\n%s", err, first)
	}
	trajectories := archive.TrajectoriesDir(first.Dir)
	// In a file, root cannot write either.
	if err := errors.Join(os.RemoveAll(trajectories), os.WriteFile(trajectories, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	seen := &recorder{}
	again, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{CheckpointOptions: trainer.CheckpointOptions{Observer: seen}})
	if err != nil || !strings.Contains(seen.String(), "are not saved") || !strings.Contains(again.String(), "trajectories  could not be saved") {
		t.Errorf("%v, notes %s\n%s", err, seen, again)
	}
}

// TestEvaluationDirs checks that evaluations with different settings do not overwrite each other's files.
func TestEvaluationDirs(t *testing.T) {
	dir := t.TempDir()
	of := func(sets ...string) *config.Config {
		return load(t, dir, slices.Concat(noColdStart, []string{"run.steps=1", "run.checkpoint_every=1"}, sets)...)
	}
	mustTrain(t, of(), trainer.TrainOptions{})
	dirOf := func(sets ...string) string {
		e, err := trainer.Evaluate(t.Context(), of(sets...), trainer.EvaluateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return e.Dir
	}
	first := dirOf()
	if again := dirOf(); again != first || !strings.HasPrefix(filepath.Base(first), "step-000001-") {
		t.Errorf("%s, but %s the second time", first, again)
	}
	for _, set := range []string{"eval.temperature=0", "eval.samples=7"} {
		if dirOf(set) == first {
			t.Errorf("with %s it is also %s", set, first)
		}
	}
}

// TestEvaluateOnSeveralServers evaluates agents with folders on different servers, twice. The
// accuracy equals the one that the run reported, and the run's keys in the Redis remain.
func TestEvaluateOnSeveralServers(t *testing.T) {
	url, seen := startRedis(t), &recorder{}
	names := []string{"researcher", "planner"}
	of := map[string]*config.Config{}
	for _, name := range names {
		of[name] = load(t, t.TempDir(), "store.url="+url, "run.name=apart", "run.steps=1", "eval.before=false")
	}
	each := func(f func(name string, cfg *config.Config) error) {
		t.Helper()
		var g errgroup.Group
		for _, name := range names {
			g.Go(func() error { return f(name, of[name]) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	each(func(name string, cfg *config.Config) error {
		return trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: []string{name}, Observer: seen})
	})
	for range 2 {
		found := make(chan trainer.Evaluation, len(names))
		each(func(name string, cfg *config.Config) error {
			e, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{Agents: []string{name}})
			found <- e
			return err
		})
		close(found)
		for e := range found {
			if len(e.Records) != 1 {
				t.Fatalf("%d records", len(e.Records))
			}
			got := e.Records[0]
			want := seen.find(t, "eval", 1, got.Agent)
			if got.Agent == "planner" && (len(e.Answers) != 12 || got.Values["accuracy"] != want.Values["accuracy"]) || got.Values["sampled_tokens"] != want.Values["sampled_tokens"] {
				t.Errorf("%s: %v, but %v in the run", got.Agent, got.Values, want.Values)
			}
			if got.Agent == "planner" {
				costAgrees(t, e.Scores(), seen.find(t, "eval", 1, "planner"), seen.find(t, "eval", 1, "researcher"))
			}
			if text, err := e.JSON(); err != nil || strings.Contains(string(text), "tokens_per_question") != (got.Agent == "planner") {
				t.Errorf("%s: %v: only the main agent's evaluation reports the cost of a question: %s", got.Agent, err, text)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, len(names))
	for i, name := range names { // the agents have different versions
		go func() {
			at := archive.CheckpointsOf(of[name].RunDir()).StepDir(int64(i))
			_, err := trainer.Evaluate(ctx, of[name], trainer.EvaluateOptions{CheckpointOptions: trainer.CheckpointOptions{Checkpoint: at}, Agents: []string{name}})
			failed <- err
		}()
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "checkpoint: step ") {
		t.Errorf("agents with checkpoints of two versions: %v", err)
	}
	cancel()
	<-failed
	if err := trainer.Train(t.Context(), of["planner"], trainer.TrainOptions{Agents: []string{"planner"}, Resume: true}); !errors.Is(err, trainer.ErrRunComplete) {
		t.Errorf("resuming the complete run: %v", err)
	}
}

// costAgrees compares the token counts in an evaluation's scores, which the main agent's worker
// collects from all agents, with the counts of the workers themselves.
func costAgrees(t *testing.T, scores []metrics.Score, agents ...metrics.Record) {
	t.Helper()
	var of, want float64
	for _, s := range scores {
		if s.By == "" {
			of += s.Tokens * float64(s.Questions*s.Samples)
		}
	}
	for _, r := range agents {
		want += r.Values["tokens"]
	}
	if of == 0 || math.Abs(of-want) > 1e-6*want {
		t.Errorf("the answers of an evaluation took %v tokens, but its agents counted %v", of, want)
	}
}

// TestUnknownAgent: a misspelt agent is refused by its name before anything is opened, such as the gateway, whose address is not free.
func TestUnknownAgent(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := load(t, t.TempDir())
	withGateway := load(t, t.TempDir(), append(noColdStart, `task.program.command=["true"]`, "gateway.listen="+taken.Addr().String())...)
	names, want := []string{"planer"}, `there is no agent "planer" in the configuration, only planner, researcher`
	_, evaluated := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{Agents: names})
	trained := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Agents: names})
	playing := trainer.Train(t.Context(), withGateway, trainer.TrainOptions{Agents: names})
	for call, err := range map[string]error{"Evaluate": evaluated, "Train": trained, "Train with a gateway": playing} {
		if err == nil || err.Error() != want {
			t.Errorf("%s: got error %v, want %q", call, err, want)
		}
	}
}

func TestEvaluateRefusesAgents(t *testing.T) {
	cfg := load(t, t.TempDir())
	for name, want := range map[string]string{"novelist": "planner, researcher", "researcher": "main agent"} {
		_, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{Agents: []string{name}, Against: []score.Answers{{}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEvaluationOfSets(t *testing.T) {
	scores := []metrics.Score{
		{Questions: 3, Samples: 4, Accuracy: 0.5, Interval: [2]float64{0.2, 0.8}, Pass: map[int]float64{4: 0.75}, Best: map[int]float64{4: 0.8}, Calls: 2.25, Tokens: 60},
		{By: "kind", Of: "a kind with a name that is far too long for a column", Questions: 2, Samples: 4, Pass: map[int]float64{}, Best: map[int]float64{}},
		{Set: "hard", Questions: 1, Samples: 4, Accuracy: 0.25, Pass: map[int]float64{}, Best: map[int]float64{}, Tokens: 20},
	}
	e := trainer.Evaluation{Checkpoint: "step-000030", Samples: 4, Records: []metrics.Record{
		{Agent: "planner", Values: map[string]float64{"accuracy": 0.5, "tokens": 600, "rollout_seconds": 8}, Scores: scores},
		{Agent: "researcher", Values: map[string]float64{"tokens": 200, "rollout_seconds": 7}},
	}}
	text := e.String()
	for _, want := range []string{"task.eval", "0.200-0.800", "  kind a kind with a", "hard", "0.2500", "a question took 200 tokens and 2.00 seconds"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 81 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	raw, err := e.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Scores  []metrics.Score  `json:"scores"`
		Tokens  float64          `json:"tokens_per_question"`
		Seconds float64          `json:"seconds_per_question"`
		Agents  []metrics.Record `json:"agents"`
	}
	if err := json.Unmarshal(raw, &got); err != nil || len(got.Scores) != 3 || got.Scores[0].Pass[4] != 0.75 || got.Tokens != 200 || got.Seconds != 2 || len(got.Agents) != 2 || got.Agents[1].Agent != "researcher" {
		t.Errorf("%v in\n%s", err, raw)
	}
}

// An evaluation that cannot be compared with the earlier one is refused before its checkpoint is opened.
func TestEvaluateRefusesOtherQuestions(t *testing.T) {
	cfg := load(t, t.TempDir(), "eval.queries=4")
	for want, against := range map[string][]score.Answers{
		"evaluations of 1 and 4 questions":       {{Question: "a", Digest: "d", Correct: []float64{1}}},
		`question "eval-000000" is not the same`: {{Question: "eval-000000", Digest: "d", Correct: []float64{1}}, {Question: "b", Digest: "d", Correct: []float64{1}}, {Question: "c", Digest: "d", Correct: []float64{1}}, {Question: "d", Digest: "d", Correct: []float64{1}}},
	} {
		if _, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{Against: against}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// ReadAnswers reads the file that an evaluation writes, and refuses other files.
func TestReadAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "before.json")
	text, err := trainer.Evaluation{Samples: 2, Answers: []score.Answers{{Set: "hard", Question: "a", Digest: "d", Correct: []float64{0, 1}}}}.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := score.ReadAnswers(path)
	if err != nil || len(got) != 1 || got[0].Set != "hard" || got[0].Question != "a" || len(got[0].Correct) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, other := range []string{"", "{}", `{"answers": 1}`, `{"answers": []}`} {
		if err := os.WriteFile(path, []byte(other), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := score.ReadAnswers(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", other, err)
		}
	}
}
