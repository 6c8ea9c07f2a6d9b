package main

import (
	"context"
	"fmt"
	"os"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/store"
)

type benchStoreCmd struct {
	Out   string `short:"o" placeholder:"FILE" help:"JSON file of the results. Absent: bench/results/store-MACHINE.json, or no file with --quick."`
	Quick bool   `help:"Simulate a few workers for a second, to see that everything runs."`
}

func (benchStoreCmd) Help() string {
	return `Starts a redis-server on this machine with appendfsync always. First plays steps through a proxy that counts bytes and
round trips. Then applies the load of many workers, without TLS and with TLS. Needs the program redis-server.`
}

func (c *benchStoreCmd) Run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	results, err := store.Run(ctx, store.Options{
		Commit: version, Client: []string{self, "bench", "store-client"}, Quick: c.Quick,
		Log: benchFlags{}.log,
		Save: func(r *store.Results) error {
			switch {
			case c.Out != "":
				return measure.WriteFile(c.Out, r)
			case c.Quick:
				return nil
			}
			return measure.WriteFile(measure.Path("store", r.Machine), r)
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
