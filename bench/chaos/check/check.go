// Package check checks whether a repeatedly killed run kept the promises of docs/reliability.md. It reads the ledgers and manifests
// of the run and of an uninterrupted run, the record of the run in Redis, and the list of kills. It shares no code with the trainer.
package check

import (
	"context"
	"fmt"
	"time"
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

// Settings names the files of both runs, and the store of the killed run.
type Settings struct {
	Run     string // name of the run
	Steps   int64
	Whole   string            // folder of the uninterrupted run
	Dirs    map[string]string // folder of the run, by agent
	Agents  []string          // the main agent first
	Store   string            // URL of its Redis, with a password that may read the record
	CA      string            // PEM file of the authority of the server's certificate
	Kills   string            // file with a line of JSON for every kill
	Minimum int               // minimum number of kills
}

// Run makes all checks.
func Run(ctx context.Context, s Settings) Findings {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	f := Findings{Steps: s.Steps, Agents: s.Agents, Broken: []string{}, Void: []string{}}
	f.ledgers(s)
	f.manifests(s)
	f.record(ctx, s)
	f.coverage(s)
	const maxFindings = 30 // printed findings
	if n := len(f.Broken); n > maxFindings {
		f.Broken = append(f.Broken[:maxFindings], fmt.Sprintf("and %d more", n-maxFindings))
	}
	return f
}

// Status returns an exit status. 0: the promises were kept. 1: a promise was broken. 2: the run is void, for example because there
// were too few kills to prove anything.
func (f Findings) Status() int {
	switch {
	case len(f.Broken) > 0:
		return 1
	case len(f.Void) > 0:
		return 2
	}
	return 0
}
