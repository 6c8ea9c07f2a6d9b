package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/mgrpo/mgrpo/trainer/policy/chat"
)

type chatCmd struct {
	modelFlags
	samplingFlags
	System  string `placeholder:"TEXT" help:"System message."`
	Context int    `default:"4096" help:"Tokens of the whole conversation, up to the model's own limit; 0: that limit."`
}

func (chatCmd) Help() string {
	return `One message a line, from a terminal or a pipe. /reset starts over, /exit or Ctrl-D ends, Ctrl-C cuts an answer
short.`
}

func (c *chatCmd) Run(ctx context.Context) (err error) {
	sampling, err := c.sampling()
	if err != nil {
		return err
	}
	p, err := c.open(ctx, c.Context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	if p.Tokenizer == nil {
		return p.NoTokenizer()
	}
	sampling.StopIDs = p.StopIDs()
	engine, err := p.Engine(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close(context.WithoutCancel(ctx))) }()
	s := chat.Session{Engine: engine, Tokenizer: p.Tokenizer, System: c.System, Sampling: sampling, Seed: c.Seed, Out: plain{os.Stdout}, Notes: os.Stderr}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		s.Prompt = "> "
	}
	// From here on Ctrl-C interrupts the answer; the context that main gave ends at the first one.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx, os.Stdin, interrupts)
}
