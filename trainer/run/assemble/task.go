package assemble

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/gsm8k"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// OpenTask opens the configured task, for a process with `agentsHere` agents. Its verifiers allocate nothing before the first
// score.
func OpenTask(cfg *config.Config, agentsHere int) (task.Task, error) {
	switch cfg.Task.Kind {
	case "go":
		return nil, cfg.Fault("task.kind", errors.New("the task go must come from a Go program, in trainer.TrainOptions (docs/library.md): start that program"))
	case "research":
		return researchTask(cfg)
	}
	return openRowTask(cfg, agentsHere)
}

func researchTask(cfg *config.Config) (task.Task, error) {
	r := cfg.Task.Research
	return research.New(research.Options{
		Seed: cfg.Run.Seed, EvalSize: cfg.Eval.Queries,
		Shape: &research.Shape{Hops: r.Hops, Parts: r.Parts, Alias: r.Alias, Outdated: r.Outdated, Failures: r.Failures},
		Noise: research.Noise{
			OneWord: r.Keyword, Outdated: r.Was, RandomQuote: r.Random, GiveUp: r.GiveUp,
			WrongRelation: r.WrongRel, StopEarly: r.Early, AskAgain: r.Reask,
		},
	})
}

// openRowTask makes a task of questions and answers in files.
func openRowTask(cfg *config.Config, agentsHere int) (_ task.Task, err error) {
	t := cfg.Task
	train, heldOut := cfg.Resolve(t.Train), cfg.Resolve(t.Eval)
	for _, file := range []struct{ key, path string }{{"task.train", train}, {"task.eval", heldOut}} {
		if _, err := os.Stat(file.path); err != nil {
			return nil, cfg.Fault(file.key, err)
		}
	}
	var answer, expert verify.Verifier
	defer func() {
		if err != nil {
			err = errors.Join(err, verify.Close(answer), verify.Close(expert))
		}
	}()
	if answer, err = openVerifier(cfg, t.Verifier, agentsHere); err != nil {
		return nil, fmt.Errorf("task.verifier: %w", err)
	}
	expert = answer
	switch t.Expert.Kind {
	case "auto":
	case "parts":
		expert = verify.Parts(answer, t.Expert.Overlap)
	default:
		if expert, err = openVerifier(cfg, t.Expert, agentsHere); err != nil {
			return nil, fmt.Errorf("task.expert: %w", err)
		}
	}
	if t.Kind == "gsm8k" {
		return gsm8k.Open(gsm8k.Options{
			Train: train, Eval: heldOut, Seed: cfg.Run.Seed, Main: answer, Sub: expert, Delegate: demonstratedDelegations,
		})
	}
	var sets []jsonl.Set
	for _, s := range t.EvalSets {
		path := cfg.Resolve(s.Path)
		if _, err := os.Stat(path); err != nil {
			return nil, cfg.Fault("task.eval_sets."+s.Name+".path", err)
		}
		sets = append(sets, jsonl.Set{Name: s.Name, Path: path, Layout: s.Layout})
	}
	var stages []jsonl.Stage
	for _, s := range t.Curriculum {
		stages = append(stages, jsonl.Stage{Name: s.Name, Kinds: s.Kinds, Levels: s.Levels, MinParts: s.MinParts, MaxParts: s.MaxParts, Balance: s.Balance})
	}
	return jsonl.Open(jsonl.Options{
		Stages: stages,
		Layout: t.Layout, Sets: sets, Train: train, Eval: heldOut, Seed: cfg.Run.Seed, Main: answer, Sub: expert, NeedParts: t.Expert.Kind == "parts",
		AnswersNameOptions: verify.Kind(t.Verifier.Kind) == verify.Choice,
		Unread:             cfg.PlayedByProgram(), // a program may score its answers itself
		Fields:             jsonl.Fields(t.Fields),
	})
}

// demonstratedDelegations is the share of a cold start's conversations in which the main agent
// delegates. It is enough to learn how, but not so many that it no longer answers any question itself.
const demonstratedDelegations = 0.7

// RowWarnings returns a text for each stage of the curriculum (without one, for the whole training) whose rows are fewer than the
// queries of a step. Such a step has several groups of the same row. The last text names the stages that never begin, because
// the stages before them take all of run.steps.
func RowWarnings(cfg *config.Config, t task.Task) (out []string) {
	n := int64(cfg.Task.QueriesPerStep)
	find := func(where string, query func(i int64) task.Query) {
		rows := map[string]bool{}
		for i := range n {
			rows[query(i).Row] = true
		}
		if int64(len(rows)) < n {
			out = append(out, fmt.Sprintf("the %d queries of a step are made from only %d rows of the task%s, so each step repeats some of them: add "+
				"rows, or lower task.queries_per_step", n, len(rows), where))
		}
	}
	if len(cfg.Task.Curriculum) == 0 {
		find("", t.Train)
	}
	var begun int64
	var never []string
	for i, s := range cfg.Task.Curriculum {
		if begun >= cfg.Run.Steps {
			never = append(never, s.Name)
			continue
		}
		begun += s.Steps
		if staged, ok := t.(task.WithCurriculum); ok {
			find(" in the stage "+s.Name, func(at int64) task.Query { return staged.TrainStage(i, at) })
		}
	}
	if len(never) > 0 {
		out = append(out, fmt.Sprintf("run.steps is %d, so these stages of task.curriculum never begin (%s): raise run.steps, or shorten the stages before "+
			"them", cfg.Run.Steps, strings.Join(never, ", ")))
	}
	return out
}
