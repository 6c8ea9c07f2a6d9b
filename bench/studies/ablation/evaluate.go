package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/gonum/floats"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// evaluate plays the held-out queries with a checkpoint: `samples` times each at temperature 1, and once greedily.
func evaluate(ctx context.Context, cfg *config.Config, stepDir string, samples int, observer metrics.Observer) (Outcome, error) {
	var out Outcome
	sampled := *cfg
	sampled.Eval.Samples, sampled.Eval.Temperature = samples, 1
	opt := trainer.EvaluateOptions{CheckpointOptions: trainer.CheckpointOptions{Checkpoint: stepDir, Observer: observer}}
	e, err := trainer.Evaluate(ctx, &sampled, opt)
	if err != nil {
		return out, err
	}
	for _, r := range e.Records {
		if r.Agent == cfg.Main().Name {
			out.Accuracy = r.Values[metrics.Accuracy]
		} else if score, ok := r.Values[metrics.ExpertMean]; ok {
			out.Expert = &score
		}
	}
	t, err := assemble.OpenTask(cfg, 1)
	if err != nil {
		return out, err
	}
	files, err := filepath.Glob(filepath.Join(e.Dir, "trajectories", "eval-*", cfg.Main().Name+".jsonl"))
	if err != nil {
		return out, err
	}
	if len(files) != 1 {
		return out, fmt.Errorf("%s has the trajectories of %d evaluations, want one", e.Dir, len(files))
	}
	if err := describe(ctx, &out, t, files[0]); err != nil {
		return out, err
	}
	greedy := *cfg
	greedy.Eval.Samples, greedy.Eval.Temperature = 1, 0
	if e, err = trainer.Evaluate(ctx, &greedy, opt); err != nil {
		return out, err
	}
	out.Greedy = e.Records[0].Values[metrics.Accuracy]
	return out, nil
}

// rollout holds the result of one of the main agent's trajectories.
type rollout struct {
	hops, calls int
	correct     float64
}

// describe splits the main agent's trajectories by the hops of their questions and by question, and counts delegations.
func describe(ctx context.Context, out *Outcome, t task.Task, path string) error {
	questions, err := rolloutsOf(ctx, t, path)
	if err != nil {
		return err
	}
	var byHops [][]float64
	calls := map[string][]int{}
	for _, id := range slices.Sorted(maps.Keys(questions)) {
		var correct []float64
		for _, r := range questions[id] {
			for len(byHops) < r.hops {
				byHops = append(byHops, nil)
			}
			byHops[r.hops-1] = append(byHops[r.hops-1], r.correct)
			correct, calls[id] = append(correct, r.correct), append(calls[id], r.calls)
		}
		out.Questions = append(out.Questions, mean(correct))
	}
	for _, s := range byHops {
		out.Hops = append(out.Hops, floats.Sum(s)/float64(max(len(s), 1)))
	}
	out.Calls = callsOf(calls)
	return nil
}

// rolloutsOf reads the main agent's trajectories, by question.
func rolloutsOf(ctx context.Context, t task.Task, path string) (map[string][]rollout, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	questions := map[string][]rollout{}
	for dec := json.NewDecoder(bufio.NewReader(f)); ; {
		var l archive.Line
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return questions, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r := rollout{}
		if r.hops, r.correct, err = grade(ctx, t, l); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, l.ID, err)
		}
		for _, n := range l.Calls {
			r.calls += n
		}
		questions[l.Query] = append(questions[l.Query], r)
	}
}

// callsOf summarises delegations. questions holds each rollout's delegations by question.
func callsOf(questions map[string][]int) (c Calls) {
	var total, rollouts int
	for _, id := range slices.Sorted(maps.Keys(questions)) {
		own := questions[id]
		for _, n := range own {
			for len(c.Rollouts) <= n {
				c.Rollouts = append(c.Rollouts, 0)
			}
			c.Rollouts[n]++
			total += n
		}
		rollouts += len(own)
		if low, high := slices.Min(own), slices.Max(own); high-low > c.Widest[1]-c.Widest[0] {
			c.Widest = [2]int{low, high}
		}
	}
	c.Mean = float64(total) / float64(max(rollouts, 1))
	if deviation, ok := score.SpreadWithin(questions); ok {
		c.Deviation = deviation
	}
	return c
}

// grade returns the number of hops of a trajectory's question, and the score of its answer.
func grade(ctx context.Context, t task.Task, l archive.Line) (hops int, correct float64, err error) {
	q, err := t.Lookup(l.Query)
	if err != nil {
		return 0, 0, err
	}
	kb, ok := q.Data.(*research.KB)
	if !ok {
		return 0, 0, errors.New("not a question of the research task")
	}
	if l.FormatValid {
		correct, err = t.VerifyMain(ctx, q, task.Attempt{Answer: l.Answer})
	}
	return len(kb.Relations), correct, err
}
