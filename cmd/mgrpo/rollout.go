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
	Exec     string `required:"" placeholder:"COMMAND" help:"Program and arguments, separated by spaces, that plays one rollout."`
	TokenEnv string `required:"" placeholder:"NAME" help:"Environment variable with the token of the run's gateway.token_env."`
	Parallel int    `default:"1" help:"Rollouts at once."`
}

func (rolloutCmd) Help() string {
	return `Asks a run for rollouts and has the command play them, until Ctrl-C. The command finds the team's endpoint in
OPENAI_BASE_URL and OPENAI_API_KEY and the question in MGRPO_QUERY; its last line of output is the result
(docs/programs.md). A rollout that a killed machine leaves is given to another.`
}

func (c *rolloutCmd) Run(ctx context.Context) error {
	token := os.Getenv(c.TokenEnv)
	if token == "" {
		return fmt.Errorf("--token-env: the environment has no %s", c.TokenEnv)
	}
	g, ctx := errgroup.WithContext(ctx)
	for range max(c.Parallel, 1) {
		g.Go(func() error {
			client := gateway.Client{URL: c.URL, Token: token, Command: strings.Fields(c.Exec), Dir: ".", Hidden: []string{c.TokenEnv},
				Note: func(text string) { fmt.Fprintln(os.Stderr, "mgrpo:", text) }}
			return client.Play(ctx)
		})
	}
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
