// Package doctor looks at a machine, and at a configuration meant to run on it, and says what is there, what
// is not, and what to do about it. Preflight is the part of it that every training runs.
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

// From good to bad. A warning does not stop a run; a failure will.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Finding is one thing that was looked at.
type Finding struct {
	Status Status
	What   string // "memory"
	Found  string // what is there
	Advice string // what to do; "" where nothing needs doing
}

// Options of an examination.
type Options struct {
	Config  *config.Config // nil: the machine alone
	CPUOnly string         // why this program does not use CUDA; "" where it does
}

// Examine looks at everything. It allocates no model and changes nothing.
func Examine(ctx context.Context, o Options) []Finding {
	gpus := seeGPUs()
	findings := []Finding{libTorch(), processor(), hostMemory()}
	findings = append(findings, gpus.findings(o)...)
	findings = append(findings, redis(ctx, o.Config))
	if o.Config == nil {
		return append(findings, disk(".", 0))
	}
	return append(findings, configured(ctx, o.Config)...)
}

// Write prints the findings, at most 80 columns wide where words allow, and says whether any is a failure.
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
