// Command mgrpo trains teams of language-model agents with M-GRPO.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/mgrpo/mgrpo/trainer"
	_ "github.com/mgrpo/mgrpo/trainer/withgotch"
)

// version is set by the linker to the commit.
var version = "unknown"

// cli is the command line. Each command has a field here and a file.
type cli struct {
	Train      trainCmd      `cmd:"" help:"Train every agent of a team in this process."`
	Worker     workerCmd     `cmd:"" help:"Train one agent of a team on this server. Workers may start in any order."`
	Rollout    rolloutCmd    `cmd:"" help:"Play a run's rollouts with a program on this machine."`
	Status     statusCmd     `cmd:"" help:"Show a run's agents, versions, leases and waits."`
	Report     reportCmd     `cmd:"" help:"Write one HTML file of a run: curves, trajectories, costs."`
	Track      trackCmd      `cmd:"" help:"Forward a run's records to Weights & Biases, MLflow or TensorBoard."`
	Checkpoint checkpointCmd `cmd:"" help:"List, verify and prune the checkpoints of a run."`
	Store      storeCmd      `cmd:"" help:"Print the Redis ACL rules of a run."`
	Init       initCmd       `cmd:"" help:"Write a commented configuration to start from."`
	Doctor     doctorCmd     `cmd:"" help:"Check this machine and a configuration, and suggest a remedy for each problem."`
	Export     exportCmd     `cmd:"" help:"Write a model as a GGUF file."`
	Merge      mergeCmd      `cmd:"" help:"Merge a LoRA adapter into a model, and write a complete checkpoint."`
	Eval       evalCmd       `cmd:"" help:"Evaluate a checkpoint of a team on held-out queries."`
	Chat       chatCmd       `cmd:"" help:"Talk to a model or to a trained team."`
	Serve      serveCmd      `cmd:"" help:"Serve a trained team, or a model, as an OpenAI endpoint."`
	Bench      benchCmd      `cmd:"" help:"Measure kernels and phases, and compare them with peers."`
	Version    versionCmd    `cmd:"" help:"Print the versions of mgrpo, LibTorch and Go, and the CPU and GPUs."`

	Generate   generateCmd   `cmd:"" group:"lines" help:"Continue prompts."`
	Score      scoreCmd      `cmd:"" group:"lines" help:"Compute log-probs and entropies of token ids."`
	Tokenize   tokenizeCmd   `cmd:"" group:"lines" help:"Turn text into token ids, or token ids into text."`
	Render     renderCmd     `cmd:"" group:"lines" help:"Turn chats into prompts with the model's chat template."`
	Advantages advantagesCmd `cmd:"" group:"lines" help:"Compute group advantages and alignment draws."`
}

// Exit statuses. A process that a signal ended has 128 plus the signal's number, as shells report it.
const (
	exitFailed = 1 // an error that would occur again
	// Stopped before the end: by a request, because other workers did not appear, or because a GPU needs a new process.
	// --resume continues (EX_TEMPFAIL).
	exitStopped     = 75
	exitUsage       = 80  // a wrong command line
	exitInterrupted = 130 // Ctrl-C or SIGTERM ended it at once
)

// helpTexts are parts of the help of flags. A tag includes one as ${NAME}.
var helpTexts = kong.Vars{
	"hub_model":    "ORG/NAME[@REVISION] of a model in the Hub's local cache",
	"results_file": "bench/results/SUITE-MACHINE.json; with --quick or --only, none",
	"weight_types": "auto (fp32 on a CPU, bf16 on a GPU), fp32, bf16, or quantised (the types of the GGUF file)",
}

func newParser(c *cli) *kong.Kong {
	return kong.Must(c, kong.Name("mgrpo"), kong.Description("Train teams of language-model agents with M-GRPO."),
		helpTexts, kong.ShortUsageOnError(), kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 80}),
		kong.ExplicitGroups([]kong.Group{{Key: "lines", Title: "JSON lines in, JSON lines out:"}}))
}

// helpAsFlag turns `help COMMAND` into `COMMAND --help`, and a command line without a command into `--help`.
func helpAsFlag(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

func main() {
	trainer.ServeChild() // does not return in processes that a run starts itself
	cpuOnly = handOver()
	var c cli
	parser := newParser(&c)
	command, err := parser.Parse(helpAsFlag(os.Args[1:]))
	parser.FatalIfErrorf(err)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal cancels the command's context, the second ends the process. Trainings handle signals
	// differently: see stop.go.
	context.AfterFunc(ctx, stop)
	command.BindTo(ctx, (*context.Context)(nil))
	if err := command.Run(); err != nil {
		out := plainWriter{os.Stderr} // it may contain text from other programs
		if trainer.Resumable(err) {
			fmt.Fprintf(out, "mgrpo: %v\n", err)
			os.Exit(exitStopped)
		}
		if errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "mgrpo: stopped")
			os.Exit(exitInterrupted)
		}
		fmt.Fprintf(out, "mgrpo: %v\n", err)
		os.Exit(exitFailed)
	}
}

// refuseFlags returns an error if the command line has one of the flags, because they belong to another form of the command.
func refuseFlags(parsed *kong.Context, why string, names ...string) error {
	for _, p := range parsed.Path {
		if p.Flag != nil && slices.Contains(names, p.Flag.Name) {
			return fmt.Errorf("--%s %s", p.Flag.Name, why)
		}
	}
	return nil
}
