package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/mgrpo/mgrpo/cmd/mgrpo/chat"
	"github.com/mgrpo/mgrpo/trainer"
)

type chatCmd struct {
	optionalConfig
	optionalModelFlags
	samplingFlags
	Checkpoint string `placeholder:"DIR" help:"With a team: folder of a step; absent: the run's newest."`
	System     string `placeholder:"TEXT" help:"With --model: the system message."`
	Context    int    `default:"4096" help:"With --model: largest number of tokens of the conversation, within the model's own limit; 0: that limit."`
}

func (chatCmd) Help() string {
	return `With --model: a conversation with one model.

With a configuration, such as mgrpo chat team.yaml: questions to the trained team, each a task of its own. The main
agent's calls of the other agents and their answers are shown as they happen. A team samples as in its evaluations;
--set eval.temperature=0 makes it greedy.

Each line is a message, from a terminal or a pipe. /reset starts over, /exit or Ctrl-D ends the conversation, and Ctrl-C
stops an answer.`
}

func (c *chatCmd) Run(ctx context.Context, parsed *kong.Context) error {
	if c.given() == (c.Model != "") {
		return errors.New("name the configuration of a team, such as team.yaml, or a model with --model")
	}
	if err := c.refuse(parsed); err != nil {
		return err
	}
	// In the conversation Ctrl-C interrupts the answer. The context from main would end at the first Ctrl-C.
	interrupts := make(chan os.Signal, 1)
	defer signal.Stop(interrupts)
	terminal := chat.Terminal{In: os.Stdin, Interrupts: interrupts, Prompt: prompt(), Out: plainWriter{os.Stdout}, Notes: plainWriter{os.Stderr}}
	if c.Model == "" {
		return c.withTeam(ctx, terminal, interrupts)
	}
	return c.withModel(ctx, terminal, interrupts)
}

// refuse returns an error that names a flag of the other form of the command.
func (c *chatCmd) refuse(parsed *kong.Context) error {
	if c.Model != "" {
		return refuseFlags(parsed, "is for a team: --model names the folder of an agent in it", "set", "checkpoint")
	}
	if err := refuseFlags(parsed, "is for --model: a team's system prompts are agents.NAME.prompt in its configuration", "system"); err != nil {
		return err
	}
	return refuseFlags(parsed, "is for --model: a team samples as in its evaluations, such as with --set eval.temperature=0",
		"adapter", "device", "dtype", "threads", "temperature", "top-k", "top-p", "min-p", "max-new", "stop", "seed", "context")
}

// prompt returns the text that is printed before a person's turn.
func prompt() string {
	if term.IsTerminal(int(os.Stdin.Fd())) {
		return "> "
	}
	return ""
}

func (c *chatCmd) withModel(ctx context.Context, terminal chat.Terminal, interrupts chan os.Signal) (err error) {
	sampling, err := c.sampling()
	if err != nil {
		return err
	}
	checkpoint, err := c.open(ctx, c.Context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checkpoint.Close(context.WithoutCancel(ctx))) }()
	if checkpoint.Tokenizer == nil {
		return checkpoint.NoTokenizerError()
	}
	sampling.StopIDs = checkpoint.StopIDs()
	engine, err := checkpoint.OpenEngine(ctx, 1)
	if err != nil {
		return err
	}
	signal.Notify(interrupts, os.Interrupt)
	ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM)
	defer stop()
	s := chat.Session{Terminal: terminal, Engine: engine, Tokenizer: checkpoint.Tokenizer, System: c.System, Sampling: sampling, Seed: c.Seed}
	return s.Run(ctx)
}

// withTeam holds a conversation with a team. Ctrl-C also ends the loading.
func (c *chatCmd) withTeam(loading context.Context, terminal chat.Terminal, interrupts chan os.Signal) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.WithoutCancel(loading), syscall.SIGTERM)
	defer stop()
	loaded := context.AfterFunc(loading, stop)
	return trainer.Chat(ctx, cfg, trainer.CheckpointOptions{Checkpoint: c.Checkpoint}, func(ctx context.Context, team *trainer.TeamChat) error {
		if !loaded() {
			return loading.Err()
		}
		signal.Notify(interrupts, os.Interrupt)
		s := chat.Team{Terminal: terminal, BindHeldOut: team.BindHeldOut, Questions: team.Questions}
		s.Ask = func(ctx context.Context, question string, tell func(string)) (string, error) {
			return team.Ask(ctx, question, func(m trainer.Message) { tell(fmt.Sprintf("%s -> %s: %s", m.From, m.To, m.Text)) })
		}
		return s.Run(ctx)
	})
}
