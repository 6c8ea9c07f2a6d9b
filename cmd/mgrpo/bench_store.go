package main

import (
	"context"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/store"
)

type benchStoreCmd struct {
	Out     string    `placeholder:"FILE" help:"Results (bench/results/store-MACHINE.json; none with --quick)."`
	Workers int       `default:"999" help:"Simulated workers, in addition to the main agent's."`
	Clients int       `default:"1" help:"Processes for them, in addition to the main agent's."`
	Rates   []float64 `default:"2000,5000,10000" help:"Invocations that become due in a second, of one load each."`
	Seconds float64   `default:"60" help:"How long the load with the highest rate lasts; the others last a third."`
	Quick   bool      `help:"A few workers for a second: shows that everything runs, measures nothing."`
}

func (benchStoreCmd) Help() string {
	return `Starts a redis-server with appendfsync always on the loopback, plays steps through a counting proxy, and then
puts the load of many workers on it, without TLS and with it. Needs redis-server.`
}

func (c *benchStoreCmd) Run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	results, err := store.Run(ctx, store.Options{
		Commit: version, Client: []string{self, "bench", "store-client"}, Workers: c.Workers, Clients: c.Clients, Rates: c.Rates, Seconds: c.Seconds, Quick: c.Quick,
		Log: benchFlags{}.log,
		Save: func(r *store.Results) error {
			switch {
			case c.Out != "":
				return r.Write(c.Out)
			case c.Quick:
				return nil
			}
			return r.Write(measure.Path("store", r.Machine))
		},
	})
	if results != nil {
		fmt.Print(results.Table())
	}
	return err
}

// benchStoreClientCmd is the command of a process that bench store starts.
type benchStoreClientCmd struct{}

func (benchStoreClientCmd) Run(ctx context.Context) error {
	return store.Client(ctx, os.Stdin, os.Stdout)
}
