package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/gsm8k"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
	"github.com/mgrpo/mgrpo/trainer/task/research"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// OpenTask makes the configured task.
func OpenTask(cfg *config.Config) (task.Task, error) {
	t := cfg.Task
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
	answer, err := openVerifier(cfg, t.Verifier)
	if err != nil {
		return nil, fmt.Errorf("task.verifier: %w", err)
	}
	expert := answer
	if t.Expert.Kind != "auto" {
		if expert, err = openVerifier(cfg, t.Expert); err != nil {
			return nil, fmt.Errorf("task.expert: %w", err)
		}
	}
	train, held := cfg.Resolve(t.Train), cfg.Resolve(t.Eval)
	if t.Kind == "gsm8k" {
		return gsm8k.Open(gsm8k.Settings{
			Train: train, Eval: held, Seed: cfg.Run.Seed, Main: answer, Sub: expert,
			Delegates: AgentNames(cfg)[1:], Delegate: demonstratedDelegations,
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
	if j.Prompt != "" {
		text, err := os.ReadFile(cfg.Resolve(j.Prompt))
		if err != nil {
			return nil, err
		}
		s.Judge.Prompt = string(text)
	}
	return verify.New(s)
}

// toolbox is the tools of one agent, with what has to be closed after use.
type toolbox struct {
	byName map[string]tool.Tool
	all    []tool.Tool // in the order configured
	close  []func() error
}

// openTools makes the tools that an agent names, each within its time and output limits. A name without an
// entry in the configuration's tools is a built-in of that kind.
func openTools(ctx context.Context, cfg *config.Config, names []string) (*toolbox, error) {
	b := &toolbox{byName: map[string]tool.Tool{}}
	for _, name := range names {
		c := cfg.Tool(name)
		if c == nil {
			c = &config.Tool{Name: name, Kind: name, Timeout: defaultToolTime, MaxOutput: defaultToolOutput}
		}
		if err := b.open(ctx, cfg, c); err != nil {
			return nil, errors.Join(fmt.Errorf("tools.%s: %w", name, err), b.Close())
		}
	}
	return b, nil
}

// Limits of a built-in tool without an entry of its own; those of the configuration's defaults.
const (
	defaultToolTime   = 10 * time.Second
	defaultToolOutput = 4096
)

func (b *toolbox) open(ctx context.Context, cfg *config.Config, c *config.Tool) error {
	limits := tool.Limits{Timeout: c.Timeout, Bytes: c.MaxOutput}
	switch c.Kind {
	case "calculator":
		b.add(tool.Named(tool.Calculator(), c.Name), limits)
	case "code":
		code := tool.NewCode(tool.CodeConfig{Steps: uint64(c.MaxSteps), Output: c.MaxOutput})
		b.close = append(b.close, code.Close)
		b.add(tool.Named(code, c.Name), limits)
	case "search":
		s, err := tool.NewSearch(ctx, tool.SearchConfig{Corpus: cfg.Resolve(c.Corpus), Results: c.Results})
		if err != nil {
			return err
		}
		b.close = append(b.close, s.Close)
		b.add(tool.Named(s, c.Name), limits)
	case "mcp":
		set := tool.MCPConfig{Command: c.Command, Env: c.Env, URL: c.URL, TokenEnv: c.TokenEnv}
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		server, err := tool.ConnectMCP(ctx, set)
		if err != nil {
			return err
		}
		b.close = append(b.close, server.Close)
		limits.Secrets = set.Secrets()
		for _, t := range server.Tools() {
			b.add(t, limits)
		}
	default:
		return fmt.Errorf("there is no tool of this name and no built-in kind %q", c.Kind)
	}
	return nil
}

func (b *toolbox) add(t tool.Tool, l tool.Limits) {
	t = tool.Limited(t, l)
	b.byName[t.Name()] = t
	b.all = append(b.all, t)
}

// Close ends what the tools hold: indexes, interpreters, servers.
func (b *toolbox) Close() error {
	var errs []error
	for _, c := range b.close {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// StoreOptions are what the store is opened with; it reads the secrets that the configuration only names.
func StoreOptions(cfg *config.Config) (store.Options, error) {
	c := cfg.Store
	o := store.Options{
		Run: cfg.Run.Name, URL: c.URL, Username: c.Username, CAFile: cfg.Resolve(c.TLS.CA), CertFile: cfg.Resolve(c.TLS.Cert),
		KeyFile: cfg.Resolve(c.TLS.Key), ServerName: c.TLS.ServerName, AllowInsecure: c.AllowInsecure != "",
		AllowVolatile: c.AllowVolatile != "", Lease: c.Lease, Timeout: c.Timeout, MaxDeliveries: c.MaxDeliveries,
	}
	var err error
	o.Password, err = cfg.Password()
	return o, err
}
