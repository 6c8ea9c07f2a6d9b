// Command chaos trains a tiny team twice. The first run has one process and no interruption. The second
// has separate processes on a Redis with TLS and users. Meanwhile the command repeatedly kills workers and
// Redis, at random times and exactly at failpoints. Then bench/chaos/check checks whether anything was
// lost, done twice, or has a different result. Run it in the root of the repository, after make build:
//
//	eval "$(make env)"; go run ./bench/chaos -kills 30 -seed 1 -out bench/results/chaos-30.json
//
// The exit status is the check's status, or 3 if the run did not reach its end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const exitStuck = 3

// options holds the command line's options.
type options struct {
	kills   int
	seed    uint64
	agents  int
	steps   int
	every   int64
	shared  bool
	moe     bool
	hybrid  bool
	lora    bool
	ranks   int
	point   string
	work    string
	out     string
	overlay string
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.IntVar(&o.kills, "kills", 30, "how many times a worker or Redis is killed")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the random kills")
	flags.IntVar(&o.agents, "agents", 2, "size of the team: 2 or 3")
	flags.IntVar(&o.steps, "steps", 50, "steps of both runs, a multiple of 10; more are added if these are too few for all kills")
	flags.Int64Var(&o.every, "every", 3, "steps between checkpoints")
	flags.BoolVar(&o.shared, "shared", false, "all workers share one run.dir; otherwise each has its own")
	flags.BoolVar(&o.moe, "moe", false, "the researcher is a mixture of experts")
	flags.BoolVar(&o.hybrid, "hybrid", false, "all agents are hybrids: layers of gated delta rules, or of short convolutions, and of attention")
	flags.BoolVar(&o.lora, "lora", false, "the sub-agents train adapters on the researcher's model")
	flags.IntVar(&o.ranks, "ranks", 1, "devices of the planner, each with a process; the last one's is killed, too")
	flags.StringVar(&o.point, "point", "", "kill workers only at this failpoint")
	flags.StringVar(&o.work, "work", "build/chaos/work", "folder of the runs; its content is deleted first")
	flags.StringVar(&o.out, "out", "", "file of the results; without it they are only printed")
	flags.StringVar(&o.overlay, "overlay", "", "file for go build -overlay, which puts a bug into the program")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.kills < 0 || o.agents < 2 || o.agents > 3 || o.steps < evalEvery || o.steps%evalEvery != 0 || o.every < 1 || o.ranks < 1 || flags.NArg() > 0 {
		return o, errors.New("want two or three agents, a multiple of 10 steps, at least one between checkpoints, at least one rank, and no further arguments")
	}
	var err error
	o.work, err = filepath.Abs(o.work)
	return o, err
}

func main() {
	ctx, done := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer done()
	o, err := parse(os.Args[1:])
	status := exitStuck
	if err == nil {
		status, err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
	}
	os.Exit(status)
}

// run makes both runs, and returns the exit status of the check.
func run(ctx context.Context, o options) (status int, err error) {
	t := newTeam(o)
	if err := t.build(ctx); err != nil {
		return exitStuck, err
	}
	if err := t.coldStart(ctx); err != nil {
		return exitStuck, err
	}
	step, err := t.trainUninterrupted(ctx)
	if err != nil {
		return exitStuck, err
	}
	logf("uninterrupted: %v a step", step.Round(time.Millisecond))
	r, err := startRedis(ctx, t)
	if err != nil {
		return exitStuck, err
	}
	defer r.stop()
	c := &chaos{team: t, redis: r, step: step, rng: rand.New(rand.NewPCG(o.seed, 0)), starting: map[string]bool{}, finished: map[string]bool{},
		exits: make(chan exit, 16), counts: map[string]map[string]int{}}
	defer c.stopAll()
	started := time.Now()
	limited, cancel := context.WithTimeout(ctx, 2*time.Hour)
	defer cancel()
	if err := c.run(limited); err != nil {
		return exitStuck, errors.Join(c.logTails(), err) // the reason comes last, where readers look first
	}
	report := c.report(time.Since(started))
	if t.steps > o.steps { // the uninterrupted run must have as many steps
		if _, err := t.trainUninterrupted(ctx); err != nil {
			return exitStuck, err
		}
	}
	report.Findings = t.check(ctx, r)
	report.Metrics, err = t.sameMetrics()
	if err != nil {
		return exitStuck, err
	}
	status = report.Findings.Status()
	if !report.Metrics && status == 0 {
		status = 1
	}
	return status, report.write(o.out)
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "chaos: "+format+"\n", args...)
}
