package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
)

type rolloutCmd struct {
	URL      string `required:"" placeholder:"URL" help:"Gateway of the main agent's worker, such as http://node0:9464."`
	Exec     string `required:"" placeholder:"COMMAND" help:"Program that plays one rollout, and its arguments, separated by spaces."`
	TokenEnv string `required:"" placeholder:"NAME" help:"Environment variable with the gateway's token, which the run reads from gateway.token_env."`
	Parallel int    `default:"1" help:"Number of rollouts at once."`
}

func (rolloutCmd) Help() string {
	return `Requests rollouts from a run and starts the command for each, until Ctrl-C. The command reads the team's endpoint from
OPENAI_BASE_URL and OPENAI_API_KEY, and the question from MGRPO_QUERY (a long one from the file that MGRPO_QUERY_FILE
names). The last line of its output is the result (docs/programs.md). If this machine dies, another machine plays its
rollouts.`
}

func (c *rolloutCmd) Run(ctx context.Context) error {
	if c.Parallel < 1 {
		return errors.New("--parallel must be at least 1")
	}
	token, err := tokenFromEnv(c.TokenEnv)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for range c.Parallel {
		g.Go(func() error {
			client := gateway.Client{URL: c.URL, Token: token, Command: strings.Fields(c.Exec), Dir: ".", HiddenEnv: []string{c.TokenEnv},
				Note: func(text string) { fmt.Fprintln(os.Stderr, "mgrpo:", text) }}
			return client.Play(ctx)
		})
	}
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
