// Command check checks whether a repeatedly killed run kept the promises of docs/reliability.md. It reads the ledgers and manifests
// of the run and of an uninterrupted run, the record of the run in Redis, and the list of kills. It shares no code with the trainer.
//
//	go run ./bench/chaos/check -run chaos -steps 50 -every 3 -whole DIR -dirs planner=DIR,researcher=DIR -store URL -ca FILE -kills FILE
//
// It prints its findings as JSON. Exit status 0: the promises were kept. 1: a promise was broken. 2: the run is void, for example
// because there were too few kills to prove anything.
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

// Exit status.
const (
	exitKept   = 0
	exitBroken = 1
	exitVoid   = 2
)

// Findings of a check.
type Findings struct {
	Steps      int64    `json:"steps"`
	Agents     []string `json:"agents"`
	Rollouts   int      `json:"rollouts"`   // of the uninterrupted run
	Lost       int      `json:"lost"`       // rollouts that are missing in an agent's ledger
	Duplicated int      `json:"duplicated"` // rollouts that are repeated in an agent's ledger
	Equal      bool     `json:"equal"`      // weights and optimizers equal the uninterrupted run's, bit for bit
	Rounds     int      `json:"rounds"`
	Takeovers  int      `json:"takeovers"` // places that another worker took over within a round, as far as the record shows
	Redone     int      `json:"redone"`    // repeated steps, summed over agents
	Broken     []string `json:"broken"`    // broken promises
	Void       []string `json:"void"`      // reasons for a void run
}

func (f *Findings) broken(format string, args ...any) {
	f.Broken = append(f.Broken, fmt.Sprintf(format, args...))
}

func (f *Findings) void(format string, args ...any) {
	f.Void = append(f.Void, fmt.Sprintf(format, args...))
}

// settings holds the command line's options.
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
	const most = 30 // printed findings
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
	flags.Int64Var(&s.steps, "steps", 0, "steps of the run")
	flags.StringVar(&s.whole, "whole", "", "folder of the uninterrupted run")
	dirs := flags.String("dirs", "", "AGENT=DIR,...: the run's folder of every agent, the main agent first")
	flags.StringVar(&s.store, "store", "", "URL of its Redis, with a password that may read the record")
	flags.StringVar(&s.ca, "ca", "", "PEM file of the authority of the server's certificate")
	flags.StringVar(&s.kills, "kills", "", "file with a line of JSON for every kill")
	flags.IntVar(&s.minimum, "minimum", 0, "minimum number of kills; with fewer the run is void")
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
