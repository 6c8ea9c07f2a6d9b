// Command ablation compares ways to train a team on fan-out questions at equal rollout tokens: alignments and their d, one
// sub-agent group a batch, stale rollouts, the parts of the sub-agent's reward, the main agent alone, and a single agent
// that does everything itself. All arms of a seed begin with the same cold start. Run it in the root of the repository:
//
//	go run ./bench/studies/ablation
//
// Results are saved after every run. After an interruption the same command continues.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
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
	b := &bench{root: ".", log: os.Stderr, every: 5, samples: 2, final: 4}
	var out string
	seeds := flags.Int("seeds", 5, "run seeds 0 to this, exclusive")
	list := flags.String("arms", strings.Join(armNames(fanOut), ","), "arms to run")
	flags.Float64Var(&b.tokens, "tokens", 600000, "rollout tokens of a run: prompts, sampled and observed, of all agents")
	flags.IntVar(&b.parallel, "parallel", 2, "runs at a time")
	flags.StringVar(&out, "out", "bench/results/ablation-fanout.json", "file of the results, written when all runs are finished")
	flags.StringVar(&b.work, "work", "runs/ablation", "folder for checkpoints, trajectories and unfinished results; the same command continues from them")
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
	if *seeds < 1 || b.parallel < 1 || !(b.tokens > 0) || flags.NArg() > 0 {
		return errors.New("want at least one seed, one run at a time, a positive number of tokens and no further arguments")
	}
	if b.work, err = filepath.Abs(b.work); err != nil {
		return err
	}
	b.results, err = open(Results{
		What:   "M-GRPO on the built-in research task: arms at equal rollout tokens",
		Commit: measure.Commit(ctx),
		Machine: Machine{CPU: measure.Processor(), Cores: cgroup.UsableCores().N, Features: torch.CPUFeatures(), LibTorch: torch.Version(),
			Go: runtime.Version()},
		Settings: Settings{b.tokens, b.every, b.samples, b.final, b.set},
	}, b.unfinished(), out)
	if err != nil {
		return err
	}
	if err = b.all(ctx, which, *seeds); err == nil {
		err = measure.WriteFile(out, b.results)
	}
	fmt.Print(table(b.results, which))
	return err
}
