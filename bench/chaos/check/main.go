// Command check says whether a run that was killed again and again kept its promise. It knows nothing of how
// it was done: it reads the ledgers and the manifests of the run and of an uninterrupted one, the record of
// the run in Redis, and the list of kills; and it shares no code with the trainer.
//
//	go run ./bench/chaos/check -run chaos -steps 50 -every 3 -whole DIR -dirs planner=DIR,researcher=DIR -store URL -ca FILE -kills FILE
//
// It prints its findings as JSON. Exit status: 0 the promise held, 1 it was broken, 2 the run is void: it ended
// before anything was proved.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// What check's status says.
const (
	exitKept   = 0
	exitBroken = 1
	exitVoid   = 2
)

// Findings of a check.
type Findings struct {
	Steps      int64    `json:"steps"`
	Agents     []string `json:"agents"`
	Rollouts   int      `json:"rollouts"`   // in the surviving history, each once
	Lost       int      `json:"lost"`       // rollouts that an agent's ledger should have and has not
	Duplicated int      `json:"duplicated"` // rollouts that an agent's ledger has again
	Equal      bool     `json:"equal"`      // weights and optimizers are those of the uninterrupted run, bit for bit
	Rounds     int      `json:"rounds"`
	Takeovers  int      `json:"takeovers"` // places that went to another worker within a round, where the record shows it
	Redone     int      `json:"redone"`    // steps that were made again, of all agents together
	Broken     []string `json:"broken"`    // what was promised and not kept
	Void       []string `json:"void"`      // why nothing is proved
}

func (f *Findings) broken(format string, args ...any) {
	f.Broken = append(f.Broken, fmt.Sprintf(format, args...))
}

func (f *Findings) void(format string, args ...any) {
	f.Void = append(f.Void, fmt.Sprintf(format, args...))
}

// settings are the command line.
type settings struct {
	run     string
	steps   int64
	whole   string            // folder of the uninterrupted run
	dirs    map[string]string // folder of the run, by agent
	agents  []string          // in the order of dirs
	store   string
	ca      string
	kills   string
	minimum int
}

func main() {
	s, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "check: %v\n", err)
		os.Exit(exitVoid)
	}
	ctx, done := context.WithTimeout(context.Background(), 10*time.Minute)
	defer done()
	f := Findings{Steps: s.steps, Agents: s.agents, Broken: []string{}, Void: []string{}}
	f.ledgers(s)
	f.manifests(s)
	f.record(ctx, s)
	f.coverage(s)
	const most = 30 // of what is printed
	if n := len(f.Broken); n > most {
		f.Broken = append(f.Broken[:most], fmt.Sprintf("and %d more", n-most))
	}
	out, _ := json.MarshalIndent(f, "", "  ")
	fmt.Printf("%s\n", out)
	switch {
	case len(f.Broken) > 0:
		os.Exit(exitBroken)
	case len(f.Void) > 0:
		os.Exit(exitVoid)
	}
	os.Exit(exitKept)
}

func parse(args []string) (settings, error) {
	s := settings{dirs: map[string]string{}}
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.StringVar(&s.run, "run", "", "name of the run")
	flags.Int64Var(&s.steps, "steps", 0, "steps that it had to make")
	flags.StringVar(&s.whole, "whole", "", "folder of the uninterrupted run")
	dirs := flags.String("dirs", "", "AGENT=DIR,...: the run's folder of every agent, main first")
	flags.StringVar(&s.store, "store", "", "URL of its Redis, with a password that may read the record")
	flags.StringVar(&s.ca, "ca", "", "PEM file of the authority of the server's certificate")
	flags.StringVar(&s.kills, "kills", "", "file with a line of JSON for every kill")
	flags.IntVar(&s.minimum, "minimum", 0, "kills without which the run is void")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	for pair := range strings.SplitSeq(*dirs, ",") {
		agent, dir, ok := strings.Cut(pair, "=")
		if !ok {
			return s, fmt.Errorf("-dirs: %q is not AGENT=DIR", pair)
		}
		s.agents = append(s.agents, agent)
		s.dirs[agent] = dir
	}
	if s.steps < 1 || flags.NArg() > 0 {
		return s, fmt.Errorf("want -steps of at least 1 and no further arguments")
	}
	return s, nil
}
