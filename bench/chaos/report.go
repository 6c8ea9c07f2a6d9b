package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/bench/chaos/check"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
)

// report is the result of both runs.
type report struct {
	Kills    int                       `json:"kills"`
	Pauses   int                       `json:"pauses"`   // suspensions for longer than a lease
	Targets  map[string]map[string]int `json:"targets"`  // kills of each agent's worker and of Redis, by phase of the step
	Exact    map[string]int            `json:"exact"`    // kills of workers at a failpoint, by failpoint
	Seconds  float64                   `json:"seconds"`  // of the killed run
	Alone    float64                   `json:"alone"`    // seconds of the uninterrupted run, before further steps
	Metrics  bool                      `json:"metrics"`  // all reported numbers equal the uninterrupted run's
	Settings settings                  `json:"settings"` // of both runs
	Findings check.Findings            `json:"findings"`
	Machine  string                    `json:"machine"` // cores and system
}

type settings struct {
	Seed   uint64 `json:"seed"`
	Agents int    `json:"agents"`
	Steps  int    `json:"steps"`
	Every  int64  `json:"checkpoint_every"`
	Shared bool   `json:"shared_folder"`
}

func (c *chaos) report(took time.Duration) report {
	r := report{
		Kills: len(c.kills), Pauses: c.pauses, Targets: map[string]map[string]int{}, Exact: map[string]int{},
		Seconds: took.Seconds(), Alone: c.step.Seconds() * float64(c.team.options.steps),
		Settings: settings{c.team.options.seed, c.team.options.agents, c.team.steps, c.team.options.every, c.team.options.shared},
		Machine:  fmt.Sprintf("%d cores, %s/%s", cgroup.UsableCores().N, runtime.GOOS, runtime.GOARCH),
	}
	for _, k := range c.kills {
		if r.Targets[k.Target] == nil {
			r.Targets[k.Target] = map[string]int{}
		}
		r.Targets[k.Target][k.Phase]++
		if k.Exact {
			r.Exact[k.Point]++
		}
	}
	return r
}

// write prints the report, and writes it to a file unless path is "".
func (r report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", text)
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// logTails returns the last lines of all logs as an error.
func (c *chaos) logTails() error {
	const lines = 12
	var out strings.Builder
	for _, name := range append(c.team.names, "redis") {
		data, _ := os.ReadFile(c.team.path(name + ".log"))
		all := strings.Split(strings.TrimSpace(string(data)), "\n")
		fmt.Fprintf(&out, "--- %s\n%s\n", name, strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return fmt.Errorf("the last lines of the logs in %s:\n%s", c.team.options.work, out.String())
}
