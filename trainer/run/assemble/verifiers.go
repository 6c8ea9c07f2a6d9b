package assemble

import (
	"context"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// openVerifier makes a configured verifier, for a process with `agentsHere` agents.
func openVerifier(cfg *config.Config, v config.Verifier, agentsHere int) (verify.Verifier, error) {
	kind := verify.Kind(v.Kind)
	if kind == "auto" {
		kind = map[string]verify.Kind{"gsm8k": verify.Numeric, "jsonl": verify.Normalized}[cfg.Task.Kind]
	}
	j := cfg.Task.Judge
	kept, err := cache(cfg)
	if err != nil {
		return nil, err
	}
	s := verify.Options{Kind: kind, Pattern: v.Pattern, Tolerance: v.Tolerance, Relative: v.Relative, Judge: verify.JudgeOptions{
		URL: j.URL, Model: j.Model, KeyEnv: j.KeyEnv, Scale: j.Scale, Timeout: j.Timeout, Retries: j.Retries, Cache: kept,
	}}
	if kind == verify.Program {
		s.Program = verify.ProgramOptions{Command: v.Command, Dir: cfg.Resolve(v.Dir), Timeout: v.Timeout}
	}
	if kind == verify.TorchScript {
		encode, err := scorerTokens(cfg.Resolve(v.Tokenizer))
		if err != nil {
			return nil, err
		}
		s.TorchScript = verify.TorchScriptOptions{
			Path: cfg.Resolve(v.Path), Encode: encode, MaxTokens: v.MaxTokens, Threads: threads(cfg, agentsHere),
			Device: func(agent string) string { return cfg.Agent(agent).Device },
		}
	}
	if j.Prompt != "" {
		text, err := texts.ReadFile(cfg.Resolve(j.Prompt))
		if err != nil {
			return nil, err
		}
		s.Judge.Prompt = text
	}
	return verify.New(s)
}

// scorerTokens returns a function that converts a question and its answer to the input of a reward
// model. This is a chat of two messages in the tokenizer's template or, without a template, both
// texts with a newline between them. Control tokens in both texts become plain text.
func scorerTokens(folder string) (func(question, answer string) ([]int32, error), error) {
	t, err := tokenizer.Load(folder)
	if err != nil {
		return nil, err
	}
	neutral := agent.Neutralizer(t)
	return func(question, answer string) ([]int32, error) {
		question, answer = neutral.Replace(question), neutral.Replace(answer)
		if !t.HasTemplate() {
			return t.EncodeWithSpecial(question + "\n" + answer), nil
		}
		text, err := t.Render(tokenizer.Chat{Messages: tokenizer.Messages(
			tokenizer.Message{Role: "user", Content: question}, tokenizer.Message{Role: "assistant", Content: answer})})
		return t.Encode(text), err
	}, nil
}

// CheckVerifiers scores the reference answer of the first question as an answer of each of the named agents. It returns an
// error if an answer has no score. A score of 0 is not an error: a verifier may be right to give it.
func CheckVerifiers(ctx context.Context, cfg *config.Config, t task.Task, agents []string) error {
	q := t.Train(0)
	for _, name := range agents {
		a := task.Attempt{Agent: name, Answer: q.Answer, Conversation: []task.Message{{Role: "prompt", Text: q.Text}, {Role: "assistant", Text: q.Answer}}}
		score := t.VerifyMain
		if !cfg.Agent(name).IsMain() {
			score, a.Invocation, a.Subtask = t.VerifySub, 1, q.Text
			if len(q.Parts) > 0 {
				a.Subtask = q.Parts[0].Question
			}
		}
		if _, err := score(ctx, q, a); err != nil {
			return fmt.Errorf("the reference answer of question %s has no score: %w", q.ID, err)
		}
	}
	return nil
}

// ScoredHere returns the named agents whose answers are scored by a program or a module on this server. Unlike a judge,
// which may be unavailable for a while, these can be tested at any time.
func ScoredHere(cfg *config.Config, agents []string) (here []string) {
	for _, name := range cfg.AgentNames() {
		v := cfg.Task.Verifier
		if e := cfg.Task.Expert.Kind; !cfg.Agent(name).IsMain() && e != "auto" && e != "parts" {
			v = cfg.Task.Expert
		}
		if kind := verify.Kind(v.Kind); slices.Contains(agents, name) && (kind == verify.Program || kind == verify.TorchScript) {
			here = append(here, name)
		}
	}
	return here
}
