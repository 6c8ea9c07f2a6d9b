package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/research"
)

// evaluate plays the held-out queries with a checkpoint: some samples of each at temperature 1, and one greedily.
func evaluate(ctx context.Context, cfg *config.Config, stepDir string, samples int, observer metrics.Observer) (Outcome, error) {
	var out Outcome
	sampled := *cfg
	sampled.Eval.Samples, sampled.Eval.Temperature = samples, 1
	e, err := trainer.Evaluate(ctx, &sampled, trainer.EvalOptions{Checkpoint: stepDir, Observer: observer})
	if err != nil {
		return out, err
	}
	for _, r := range e.Records {
		if r.Agent == cfg.Main().Name {
			out.Accuracy, out.Calls = r.Values["accuracy"], r.Values["calls_mean"]
		} else if score, ok := r.Values["expert_mean"]; ok {
			out.Expert = &score
		}
	}
	t, err := assemble.Task(cfg, 1)
	if err != nil {
		return out, err
	}
	files, err := filepath.Glob(filepath.Join(e.Dir, "trajectories", "eval-*", cfg.Main().Name+".jsonl"))
	if err != nil || len(files) != 1 {
		return out, fmt.Errorf("%s has the trajectories of %d evaluations, want one (%w)", e.Dir, len(files), err)
	}
	if out.Hops, err = accuracyByHops(ctx, t, files[0]); err != nil {
		return out, err
	}
	greedy := *cfg
	greedy.Eval.Samples, greedy.Eval.Temperature = 1, 0
	if e, err = trainer.Evaluate(ctx, &greedy, trainer.EvalOptions{Checkpoint: stepDir, Observer: observer}); err != nil {
		return out, err
	}
	out.Greedy = e.Records[0].Values["accuracy"]
	return out, nil
}

// accuracyByHops splits the accuracy of the main agent's trajectories by the hops of their questions: item i
// is of i+1 hops.
func accuracyByHops(ctx context.Context, t task.Task, path string) ([]float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var right, all []float64
	for dec := json.NewDecoder(bufio.NewReader(f)); ; {
		var l archive.Line
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		hops, correct, err := grade(ctx, t, l)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, l.ID, err)
		}
		for len(all) < hops {
			right, all = append(right, 0), append(all, 0)
		}
		right[hops-1] += correct
		all[hops-1]++
	}
	for i := range right {
		if all[i] > 0 {
			right[i] /= all[i]
		}
	}
	return right, nil
}

// grade says how many hops a trajectory's question has and whether it was answered.
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
