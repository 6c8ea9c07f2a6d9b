// Command ablation compares ways to train the quickstart's team at equal rollout tokens: three alignments,
// one sub-agent group a batch, the main agent alone, and a single agent that does everything itself.
// Every arm begins with its seed's same cold start. Run it in the root of the repository:
//
//	go run ./bench/ablation -seeds 3 -tokens 380000 -out bench/results/ablation.json
//
// The file is rewritten after every run; the same command goes on after an interruption.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

func main() {
	ctx, done := signal.NotifyContext(context.Background(), os.Interrupt)
	defer done()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "ablation: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("ablation", flag.ContinueOnError)
	b := &bench{root: ".", log: os.Stderr}
	seeds := flags.Int("seeds", 3, "run seeds 0 to this, exclusive")
	list := flags.String("arms", strings.Join(armNames(), ","), "arms to run; differences are to the first")
	flags.Float64Var(&b.tokens, "tokens", 380000, "rollout tokens of a run: prompts, sampled and observed, of all agents")
	flags.StringVar(&b.path, "out", "bench/results/ablation.json", "file of the results, continued if it is there")
	flags.StringVar(&b.work, "work", "runs/ablation", "folder for checkpoints and trajectories")
	flags.Int64Var(&b.every, "every", 5, "steps between evaluations")
	flags.IntVar(&b.samples, "samples", 2, "rollouts of a held-out query in these")
	flags.IntVar(&b.final, "final", 4, "rollouts of a held-out query at the start and the end")
	flags.Func("set", "KEY=VALUE: a configuration key for all runs; may be repeated", func(s string) error {
		b.set = append(b.set, s)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	which, err := chosen(*list)
	if err != nil {
		return err
	}
	if *seeds < 1 || !(b.tokens > 0) || flags.NArg() > 0 {
		return errors.New("want at least one seed, a positive number of tokens and no further arguments")
	}
	b.results, err = open(b.path, Results{
		What:   "M-GRPO on the built-in research task: arms at equal rollout tokens",
		Commit: commit(ctx), Machine: machine(),
		Settings: Settings{b.tokens, b.every, b.samples, b.final, b.set},
	})
	if err != nil {
		return err
	}
	err = b.all(ctx, which, *seeds)
	fmt.Print(table(b.results, which))
	return err
}

// commit is the repository's, "unknown" outside of one.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func machine() Machine {
	return Machine{CPU: processor(), Cores: runtime.NumCPU(), Features: torch.CPUFeatures(), LibTorch: torch.Version(), Go: runtime.Version()}
}

// processor is the model's name as Linux tells it, else the architecture.
func processor() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
