package assemble

import (
	"errors"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/gsm8k"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// Task makes the configured task.
func Task(cfg *config.Config) (_ task.Task, err error) {
	t := cfg.Task
	if t.Kind == "go" {
		return nil, cfg.Fault("task.kind", errors.New("the task go is brought by a Go program, in trainer.Options (docs/library.md): start that program"))
	}
	if t.Kind == "research" {
		r := t.Research
		return research.New(research.Settings{
			Seed: cfg.Run.Seed, EvalSize: cfg.Eval.Queries,
			Shape: &research.Shape{Hops: r.Hops, Alias: r.Alias, Outdated: r.Outdated},
			Noise: research.Noise{
				OneWord: r.Keyword, Outdated: r.Was, RandomQuote: r.Random, GiveUp: r.GiveUp,
				WrongRelation: r.WrongRel, StopEarly: r.Early, AskAgain: r.Reask,
			},
		})
	}
	var answer, expert verify.Verifier
	defer func() {
		if err != nil {
			err = errors.Join(err, verify.Close(answer), verify.Close(expert))
		}
	}()
	if answer, err = openVerifier(cfg, t.Verifier); err != nil {
		return nil, fmt.Errorf("task.verifier: %w", err)
	}
	expert = answer
	if t.Expert.Kind != "auto" {
		if expert, err = openVerifier(cfg, t.Expert); err != nil {
			return nil, fmt.Errorf("task.expert: %w", err)
		}
	}
	train, held := cfg.Resolve(t.Train), cfg.Resolve(t.Eval)
	if t.Kind == "gsm8k" {
		return gsm8k.Open(gsm8k.Settings{
			Train: train, Eval: held, Seed: cfg.Run.Seed, Main: answer, Sub: expert, Delegate: demonstratedDelegations,
		})
	}
	return jsonl.Open(jsonl.Settings{
		Train: train, Eval: held, Seed: cfg.Run.Seed, Main: answer, Sub: expert,
		Fields: jsonl.Fields{ID: t.Fields.ID, Question: t.Fields.Question, Answer: t.Fields.Answer, Choices: t.Fields.Choices},
	})
}

// demonstratedDelegations is the share of a cold start's conversations in which the main agent delegates:
// enough to learn how, not so many that it forgets to answer by itself.
const demonstratedDelegations = 0.7

func openVerifier(cfg *config.Config, v config.Verifier) (verify.Verifier, error) {
	kind := v.Kind
	if kind == "auto" {
		kind = map[string]string{"gsm8k": verify.Numeric, "jsonl": verify.Normalized}[cfg.Task.Kind]
	}
	j := cfg.Task.Judge
	s := verify.Settings{Kind: kind, Pattern: v.Pattern, Tolerance: v.Tolerance, Judge: verify.JudgeSettings{
		URL: j.URL, Model: j.Model, KeyEnv: j.KeyEnv, Scale: j.Scale, Timeout: j.Timeout, Retries: j.Retries,
	}}
	if kind == verify.Program {
		s.Program = verify.ProgramSettings{Command: v.Command, Dir: cfg.Resolve(v.Dir), Timeout: v.Timeout}
	}
	if kind == verify.TorchScript {
		encode, err := scorerTokens(cfg.Resolve(v.Tokenizer))
		if err != nil {
			return nil, err
		}
		s.TorchScript = verify.TorchScriptSettings{Path: cfg.Resolve(v.Path), Encode: encode, MaxTokens: v.MaxTokens}
	}
	if j.Prompt != "" {
		text, err := os.ReadFile(cfg.Resolve(j.Prompt))
		if err != nil {
			return nil, err
		}
		s.Judge.Prompt = string(text)
	}
	return verify.New(s)
}

// scorerTokens turns a question and its answer into what a reward model reads: a chat of two messages through the
// tokenizer's template, or where it has none both texts with a newline between them.
func scorerTokens(folder string) (func(question, answer string) ([]int32, error), error) {
	t, err := tokenizer.Load(folder)
	if err != nil {
		return nil, err
	}
	return func(question, answer string) ([]int32, error) {
		if !t.HasTemplate() {
			return t.EncodeWithSpecial(question + "\n" + answer), nil
		}
		text, err := t.Render(tokenizer.Chat{Messages: tokenizer.Messages(
			tokenizer.Message{Role: "user", Content: question}, tokenizer.Message{Role: "assistant", Content: answer})})
		return t.Encode(text), err
	}, nil
}
