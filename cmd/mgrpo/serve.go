package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/standalone"
)

type serveCmd struct {
	optionalConfig
	Model      string `placeholder:"MODEL" help:"Serve one model instead of a team: Hugging Face folder, GGUF file, or ${hub_model}."`
	Name       string `default:"model" help:"With --model: the model's name in requests."`
	Checkpoint string `placeholder:"DIR" help:"Folder of a step; absent: the run's newest."`
	Listen     string `default:"127.0.0.1:8000" placeholder:"[HOST:]PORT" help:"Address to listen at. Without HOST: 127.0.0.1."`
	TokenEnv   string `placeholder:"NAME" help:"Environment variable with the API key that requests must send. Required if other machines can reach --listen."`
	Device     string `default:"cpu" help:"With --model: cpu, cuda or cuda:N."`
	Slots      int    `default:"16" help:"With --model: number of conversations at once."`
	Context    int    `default:"4096" help:"With --model: largest number of tokens of a conversation, within the model's own limit; 0: that limit."`
}

func (serveCmd) Help() string {
	return `Serves an OpenAI endpoint. Its models are the agents of a trained team, or one model. Nothing is trained or stored. Any
OpenAI client works, with base_url http://HOST:PORT/v1.`
}

func (c *serveCmd) Run(ctx context.Context, parsed *kong.Context) (err error) {
	if c.given() == (c.Model != "") {
		return errors.New("name the configuration of a team, such as team.yaml, or a model with --model")
	}
	if c.Model != "" {
		err = refuseFlags(parsed, "is for a team", "set", "checkpoint")
	} else {
		err = refuseFlags(parsed, "is for --model: a team's configuration has these settings", "name", "device", "slots", "context")
	}
	if err != nil {
		return err
	}
	token, err := tokenFromEnv(c.TokenEnv)
	if err != nil {
		return err
	}
	address, err := hostPort(c.Listen)
	if err != nil {
		return err
	}
	server, err := health.Listen(health.Options{Address: address, Token: token})
	if err != nil {
		return fmt.Errorf("--listen and --token-env: %w", err)
	}
	defer server.Close()
	ready := func(what string, agents []trainer.ServedAgent) {
		c.describe(os.Stdout, what, server.URLs("/v1"), agents)
	}
	if c.Model != "" {
		return c.serveModel(ctx, server, token, ready)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	opt := trainer.ServeOptions{CheckpointOptions: trainer.CheckpointOptions{Checkpoint: c.Checkpoint}, Token: token, Ready: ready}
	return trainer.Serve(ctx, cfg, server, opt)
}

// describe prints what is served, where, and how to call it.
func (c *serveCmd) describe(w io.Writer, what, where string, agents []trainer.ServedAgent) {
	fmt.Fprintf(w, "%s: %s\n", what, where)
	for _, a := range agents {
		text := fmt.Sprintf("a context of %d tokens", a.ContextTokens)
		switch {
		case a.ContextTokens == 0:
			text = "hosted: requests are passed on to its server"
		case a.ReplyTokens > 0:
			text += fmt.Sprintf(", at most %d for a reply (limits.max_new_tokens)", a.ReplyTokens)
		}
		fmt.Fprintf(w, "model %q: %s\n", a.Name, text)
	}
	key := ""
	if c.TokenEnv != "" {
		key = fmt.Sprintf(` -H "Authorization: Bearer $%s"`, c.TokenEnv)
	}
	url, _, _ := strings.Cut(where, ", ")
	fmt.Fprintf(w, "try it: curl %s/chat/completions%s -d '{\"model\": %q, \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n", url, key,
		agents[0].Name)
	fmt.Fprintln(w, "Ctrl-C ends it")
}

// serveModel serves one model until ctx ends.
func (c *serveCmd) serveModel(ctx context.Context, server *health.Server, token string, ready func(string, []trainer.ServedAgent)) (err error) {
	endpoint := standalone.NewEndpoint(server)
	flags := optionalModelFlags{Model: c.Model, Device: c.Device, DType: "auto"}
	checkpoint, err := flags.open(ctx, c.Context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checkpoint.Close(context.WithoutCancel(ctx))) }()
	engine, err := checkpoint.OpenEngine(ctx, c.Slots)
	if err != nil {
		return err
	}
	opt := standalone.ServeOptions{Name: c.Name, Token: token, Ready: func(contextTokens int) {
		ready(c.Model, []trainer.ServedAgent{{Name: c.Name, ContextTokens: contextTokens}})
	}}
	return checkpoint.Serve(ctx, endpoint, engine, opt)
}
