package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

func TestMain(m *testing.M) {
	os.Setenv("OMP_NUM_THREADS", "1")
	os.Exit(m.Run())
}

// small has the overrides that make an arm take only seconds.
var small = []string{"task.queries_per_step=2", "grpo.rollouts=4", "eval.queries=12", "cold_start.queries=256", "task.research.parts=2"}

// teach returns overrides for a cold start that is just long enough that most conversations end with an answer.
func teach(name, steps string) []string {
	key := "agents." + name + ".cold_start."
	return []string{key + "steps=" + steps, key + "batch=16", key + "optimizer.warmup=5"}
}

func newBench(t *testing.T, set ...string) *bench {
	dir := t.TempDir()
	return &bench{root: "../../..", work: filepath.Join(dir, "work"), log: t.Output(), parallel: 2,
		tokens: 900, every: 1, samples: 1, final: 2, set: append(set, small...), results: &Results{}}
}

func team(t *testing.T) *bench {
	return newBench(t, append(teach("planner", "100"), teach("researcher", "100")...)...)
}

// Every arm begins with exactly the weights of the cold start: an evaluation before its first step samples the same tokens as one of the cold start's
// checkpoint.
func TestArmsBeginAlike(t *testing.T) {
	b := team(t)
	if err := b.coldStart(t.Context(), "team", 0); err != nil {
		t.Fatal(err)
	}
	from := b.startDir("team", 0)
	whole, err := b.configuration("team", 0, "cold-team", "eval.samples=2")
	if err != nil {
		t.Fatal(err)
	}
	e, err := trainer.Evaluate(t.Context(), whole, trainer.EvaluateOptions{CheckpointOptions: trainer.CheckpointOptions{Checkpoint: from, Observer: newBudget("cold", 1, 0, 0, b.log)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []arm{arms[0], arms[3], arms[4]} {
		t.Run(a.name, func(t *testing.T) {
			cfg, err := b.armConfig(a, 0, from)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Run.Steps, cfg.Eval.Before, cfg.Eval.Samples = 0, true, 2
			if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: newBudget(a.name, 1, 0, 0, b.log)}); err != nil {
				t.Fatal(err)
			}
			for _, agent := range []string{"planner", "researcher"} {
				name := filepath.Join("trajectories", "eval-0", agent+".jsonl")
				got, want := read(t, filepath.Join(cfg.RunDir(), name)), read(t, filepath.Join(e.Dir, name))
				if got != want {
					t.Errorf("%s does not begin with the weights of the cold start: its %d bytes of trajectories differ from the cold start's %d", agent, len(got), len(want))
				}
				if n := strings.Count(want, "\n"); n < 12 {
					t.Errorf("%s has %d trajectories: after such a short cold start there is too little to compare", agent, n)
				}
			}
		})
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A run ends after the first step that reaches the budget. It is evaluated on held-out questions, and a finished run does not start again.
func TestArms(t *testing.T) {
	for _, c := range []struct {
		arm string
		b   *bench
	}{{"draw-batch", team(t)}, {"main-only", team(t)}, {"single", newBench(t, teach("single", "60")...)}} {
		t.Run(c.arm, func(t *testing.T) {
			which, err := chosen(c.arm)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.b.all(t.Context(), which, 1); err != nil {
				t.Fatal(err)
			}
			again, err := open(Results{}, c.b.unfinished())
			if err != nil {
				t.Fatal(err)
			}
			if err := c.b.all(stopped(t), which, 1); err != nil {
				t.Errorf("a finished run was started again: %v", err)
			}
			checkRun(t, c.b, again.run(c.arm, 0))
			if s := again.start(which[0].start, 0); s == nil || len(s.Outcome.Questions) != 12 {
				t.Errorf("start %+v", s)
			}
			if text := table(again, which); !strings.Contains(text, which[0].title) {
				t.Errorf("table:\n%s", text)
			}
		})
	}
}

func checkRun(t *testing.T, b *bench, r *Run) {
	t.Helper()
	if r == nil || r.Steps < 1 || r.Tokens < b.tokens {
		t.Fatalf("run %+v has not spent %v tokens", r, b.tokens)
	}
	before, end := r.Curve[len(r.Curve)-2], r.Curve[len(r.Curve)-1]
	if r.Age != 0 {
		t.Errorf("trajectories are %v versions old", r.Age)
	}
	if end.Step != r.Steps || end.Tokens != r.Tokens || end.Accuracy != r.Final.Accuracy {
		t.Errorf("the curve ends at %+v, but the run ended at step %d, %v tokens, %v", end, r.Steps, r.Tokens, r.Final.Accuracy)
	}
	if before.Step != r.Steps-1 || before.Tokens >= b.tokens {
		t.Errorf("after step %d the run had %v of %v tokens, but it continued to step %d", before.Step, before.Tokens, b.tokens, r.Steps)
	}
	if len(r.Final.Questions) != 12 || math.Abs(mean(r.Final.Questions)-r.Final.Accuracy) > 1e-9 {
		t.Errorf("accuracy %v of questions %v", r.Final.Accuracy, r.Final.Questions)
	}
	if (r.Final.Expert == nil) != (r.Arm == "single") {
		t.Errorf("expert score %v", r.Final.Expert)
	}
}

func stopped(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// The settings of an arm are in its configuration, and every arm has a constant learning rate.
func TestArmConfigs(t *testing.T) {
	b := newBench(t)
	b.set = nil
	of := func(name string) *config.Config {
		which, err := chosen(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := b.armConfig(which[0], 3, "/from")
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range cfg.Agents {
			if o := a.Optimizer; o.LR != 5e-4 || o.Schedule != "constant" || o.Warmup != 3 || a.Model.Path == "" {
				t.Errorf("%s: agent %s has optimizer %+v and model %+v", name, a.Name, o, a.Model)
			}
		}
		if cfg.Run.Seed != 3 || cfg.GRPO.Rollouts != 8 || cfg.GRPO.Epochs != 2 || cfg.GRPO.Minibatches != 2 || cfg.Task.QueriesPerStep != 16 {
			t.Errorf("%s: %+v %+v", name, cfg.Run, cfg.GRPO)
		}
		return cfg
	}
	for name, mode := range map[string]string{"draw": "draw", "balanced": "balanced", "none": "none", "draw-batch": "draw", "lag-4-none": "none", "lag-4-balanced": "balanced", "lag-0-none": "none"} {
		cfg := of(name)
		if g := cfg.GRPO; g.Align.Mode != mode || g.Align.D != 4 || (g.SubGroup == "batch") != (name == "draw-batch") || cfg.Run.Arm != "team" {
			t.Errorf("%s: %+v, arm %s", name, g, cfg.Run.Arm)
		}
	}
	for name, d := range map[string]int{"draw-2": 2, "draw-8": 8, "draw-16": 16} {
		if g := of(name).GRPO; g.Align.Mode != "draw" || g.Align.D != d {
			t.Errorf("%s: %+v", name, g.Align)
		}
	}
	for name, versions := range map[string]int64{"lag-0": 0, "lag-1": 1, "lag-4": 4, "lag-0-none": 0, "lag-4-none": 4, "lag-4-balanced": 4} {
		if g := of(name).GRPO; g.MaxLag != versions || g.ExactLag != (versions > 0) || g.Old != "recomputed" || g.TISCap == nil {
			t.Errorf("%s: %+v", name, g)
		}
	}
	for name, want := range map[string][2]float64{"draw": {0.4, 0.5}, "no-expert": {0.9, 0}, "no-main": {0, 0.9}} {
		if w := of(name).GRPO.Reward.Sub; w.Main != want[0] || w.Expert != want[1] {
			t.Errorf("%s: %+v", name, w)
		}
	}
	if g := of("kl").GRPO; g.KL != "k3" || g.KLCoef != 0.02 || g.Reference != "start" {
		t.Errorf("kl: %+v", g)
	}
	if cfg := of("main-only"); cfg.Learns(cfg.Agent("researcher")) || !cfg.Learns(cfg.Agent("planner")) {
		t.Error("main-only trains the researcher")
	}
	if cfg := of("single"); cfg.Run.Arm != "single" || len(cfg.Agents) != 1 {
		t.Errorf("single: %+v", cfg.Agents)
	}
}

// The configurations of the single agent and of the team differ only in their agents.
func TestSingleConfigIsTheTeams(t *testing.T) {
	b := newBench(t)
	b.set = nil
	team, err := b.configuration("team", 0, "x")
	if err != nil {
		t.Fatal(err)
	}
	single, err := b.configuration("single", 0, "x")
	if err != nil {
		t.Fatal(err)
	}
	team.GRPO.Align, single.GRPO.Align = config.Align{}, config.Align{} // a single agent has no sub-agents to align
	if !reflect.DeepEqual(team.GRPO, single.GRPO) || !reflect.DeepEqual(team.Task, single.Task) || !reflect.DeepEqual(team.Eval, single.Eval) {
		t.Error("task, grpo or eval of bench/studies/ablation/single.yaml differs from the team's")
	}
	r, s := team.Agent("researcher"), single.Agent("single")
	shape := *r.Model.Shape
	shape.MaxPositions = s.Model.Shape.MaxPositions
	s.ColdStart.Optimizer.DecaySteps = r.ColdStart.Optimizer.DecaySteps // each decays until its own last step
	if shape != *s.Model.Shape || s.ColdStart.Optimizer != r.ColdStart.Optimizer || s.ColdStart.Batch != r.ColdStart.Batch {
		t.Error("the single agent's shape or cold start differs from the researcher's")
	}
}

func TestBudget(t *testing.T) {
	b := newBudget("x", 100, 0, 0, t.Output())
	step := func(n int64, agent string, tokens float64) {
		b.Report(metrics.Record{Kind: metrics.KindStep, Step: n, Agent: agent, Values: map[string]float64{"tokens": tokens}})
	}
	asked := func() bool {
		select {
		case <-b.stop:
			return true
		default:
			return false
		}
	}
	step(1, "sub", 40)
	step(1, "main", 20)
	b.Report(metrics.Record{Kind: metrics.KindEval, Step: 1, Agent: "main", Values: map[string]float64{"accuracy": 0.5, "tokens": 1000}})
	b.Report(metrics.Record{Kind: metrics.KindEval, Step: 1, Agent: "sub", Values: map[string]float64{"tokens": 1000}})
	step(2, "main", 39)
	if asked() {
		t.Error("asked to stop at 99 of 100 tokens, although evaluations must not count")
	}
	step(2, "sub", 1)
	if !asked() {
		t.Error("not asked to stop at 100 tokens")
	}
	want := []Point{{0, 0, 0.25}, {1, 60, 0.5}, {2, 100, 0.75}}
	if got := b.curve(0.25, 0.75); !reflect.DeepEqual(got, want) {
		t.Errorf("curve %v, want %v", got, want)
	}
}

// Rollouts made ahead of training count against the budget before they are trained on.
func TestBudgetAhead(t *testing.T) {
	b := newBudget("x", 100, 2, 0, t.Output())
	for n := range int64(3) {
		select {
		case <-b.stop:
			t.Fatalf("asked to stop after %d steps of 20 tokens, with 2 steps ahead and a budget of 100", n)
		default:
		}
		b.Report(metrics.Record{Kind: metrics.KindStep, Step: n + 1, Agent: "main", Values: map[string]float64{"tokens": 20, "lag_mean": float64(n)}})
	}
	if _, open := <-b.stop; open || b.age() != 1 {
		t.Errorf("after 60 tokens of 100, with 40 ahead: stopped %v, age %v", !open, b.age())
	}
	// An evaluation follows the third step, and there are no rollouts ahead of it.
	b = newBudget("x", 100, 2, 3, t.Output())
	for n := range int64(3) {
		b.Report(metrics.Record{Kind: metrics.KindStep, Step: n + 1, Agent: "main", Values: map[string]float64{"tokens": 20}})
	}
	select {
	case <-b.stop:
		t.Error("asked to stop at 60 of 100 tokens, without rollouts ahead")
	default:
	}
}

// Two runs at a time have the same results, in the same order, as one run at a time.
func TestParallel(t *testing.T) {
	which, err := chosen("draw,none")
	if err != nil {
		t.Fatal(err)
	}
	one, two := team(t), team(t)
	one.parallel = 1
	for _, b := range []*bench{one, two} {
		if err := b.all(t.Context(), which, 1); err != nil {
			t.Fatal(err)
		}
		for i := range b.results.Runs {
			b.results.Runs[i].Seconds = 0
		}
	}
	if !reflect.DeepEqual(one.results, two.results) || len(one.results.Runs) != 2 {
		t.Errorf("one at a time %+v\ntwo at a time %+v", one.results, two.results)
	}
}

// The table keeps its order after an interruption, even if a later arm ended first.
func TestOrder(t *testing.T) {
	r := Results{Starts: []Start{{Name: "team"}, {Name: "single"}}, Runs: []Run{{Arm: "draw", Seed: 1}, {Arm: "none"}, {Arm: "draw"}}}
	r.sort()
	want := Results{Starts: []Start{{Name: "single"}, {Name: "team"}}, Runs: []Run{{Arm: "draw"}, {Arm: "none"}, {Arm: "draw", Seed: 1}}}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("%+v", r)
	}
}

func TestChosen(t *testing.T) {
	if got, err := chosen("single,draw"); err != nil || len(got) != 2 || got[0].name != "draw" {
		t.Errorf("%v, %v: want draw and single", got, err)
	}
	if _, err := chosen("draw,nobody"); err == nil || !strings.Contains(err.Error(), "balanced") {
		t.Errorf("an unknown arm was accepted: %v", err)
	}
}

// Saved results can be continued only with the same settings.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "r.json")
	r := Results{Settings: Settings{Tokens: 5, Set: []string{"a=b"}}, Runs: []Run{{Arm: "draw", Seed: 2}}}
	if err := measure.WriteFile(path, r); err != nil {
		t.Fatal(err)
	}
	got, err := open(Results{Settings: r.Settings}, filepath.Join(t.TempDir(), "none.json"), path)
	if err != nil || got.run("draw", 2) == nil || got.run("draw", 1) != nil || got.run("none", 2) != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := open(Results{Settings: Settings{Tokens: 6, Set: []string{"a=b"}}}, path); err == nil {
		t.Error("results with other settings were continued")
	}
	if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := open(r, path); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a damaged file: %v", err)
	}
}
