// Package doctor examines a machine, and optionally a configuration that will run on it. It reports the available and the
// missing requirements, and how to correct problems. trainer.TrainAndReport runs Preflight, which compares the memory.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package doctor

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// Status of a finding.
type Status string

// Ordered from good to bad. A warning does not stop a run; a failure will.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Status Status
	What   string // subject of the check, such as "memory"
	Found  string // what the check found
	Advice string // what to do; "": nothing
}

// Options are the settings of an examination.
type Options struct {
	Config  *config.Config // nil: only the machine is examined
	Agents  []string       // agents of the configuration whose workers run on this machine; nil: all
	CPUOnly string         // reason why this program does not use CUDA; "" if it does
}

// Examine runs all checks. It does not load a model. It may build a tool's index, start MCP servers, and send a request to a
// hosted model, a judge or a verifier, whose answer the cache records.
func Examine(ctx context.Context, o Options) []Finding {
	gpus := listGPUs()
	findings := []Finding{libTorch(), processor(), hostMemory()}
	findings = append(findings, gpus.findings(o)...)
	findings = append(findings, redis(ctx, o.Config))
	if o.Config == nil {
		return append(findings, disk(".", 0))
	}
	return append(findings, checkConfiguration(ctx, o.Config, o.agents())...)
}

// agents returns the names of the agents that are examined.
func (o Options) agents() []string {
	if o.Agents != nil {
		return o.Agents
	}
	return o.Config.AgentNames()
}

// Write prints the findings, at most 80 columns wide unless a word is longer, and reports whether there is a failure among
// them.
func Write(w io.Writer, findings []Finding) (failed bool) {
	const margin = "                " // status, name
	for _, f := range findings {
		lines := wrap(f.Found, 80-len(margin))
		if f.Advice != "" {
			lines = append(lines, wrap("-> "+f.Advice, 80-len(margin))...)
		}
		fmt.Fprintf(w, "%-4s  %-9s ", f.Status, f.What)
		for i, line := range lines {
			if i > 0 {
				fmt.Fprint(w, margin)
			}
			fmt.Fprintln(w, line)
		}
		failed = failed || f.Status == Fail
	}
	return failed
}

// wrap breaks text between words.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}
