package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/report"
)

type reportCmd struct {
	Runs      []string `arg:"" name:"RUNDIR" help:"Folder of the run, such as runs/NAME; all if its agents wrote to several. Several runs are compared."`
	Out       string   `short:"o" placeholder:"FILE" help:"File to write. Absent: report.html in the first folder, or comparison.html for several runs."`
	Steps     int      `default:"5" help:"Number of training steps whose trajectories are shown."`
	Queries   int      `default:"6" help:"Number of queries shown in each of these steps."`
	Megabytes int      `default:"4" help:"Largest total size of the trajectories, in megabytes."`
}

// Run writes the report and prints its path.
func (c *reportCmd) Run() error {
	for name, n := range map[string]int{"--steps": c.Steps, "--queries": c.Queries, "--megabytes": c.Megabytes} {
		if n < 1 {
			return fmt.Errorf("%s %d: want 1 or more", name, n)
		}
	}
	r, err := report.Open(c.Runs)
	if err != nil {
		return err
	}
	path := c.Out
	switch {
	case path != "":
	case r.Compares():
		path = filepath.Join(c.Runs[0], "comparison.html")
	default:
		path = filepath.Join(c.Runs[0], "report.html")
	}
	if err := writeReport(path, r, report.Options{Steps: c.Steps, Queries: c.Queries, Bytes: c.Megabytes << 20}); err != nil {
		return err
	}
	fmt.Println(path)
	for _, dir := range c.Runs {
		if err := printHeldOut(dir); err != nil {
			return err
		}
	}
	return nil
}

// printHeldOut prints in one line what the run achieved, if it was evaluated before and after.
func printHeldOut(dir string) error {
	before, after, err := metrics.HeldOutAccuracies(dir)
	if err != nil {
		return nil // the report does not depend on two evaluations
	}
	cfg, err := config.Load(filepath.Join(dir, "config.yaml"), nil)
	if err != nil {
		return err
	}
	fmt.Printf("%s: held-out accuracy %.2f -> %.2f\n", cfg.Run.Name, before, after)
	return nil
}

// writeReport writes the report. It replaces a file only after the new one is complete, and writes to a device or a pipe directly.
func writeReport(path string, r *report.Report, opt report.Options) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("report: %s cannot be written: %w; --out names another file", path, err)
		}
	}()
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(r.Write(f, opt), f.Close())
	}
	target := path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		target = real
	} else if to, err := os.Readlink(path); err == nil {
		return fmt.Errorf("it is a link to %s, which does not exist", to)
	}
	f, err := os.CreateTemp(filepath.Dir(target), ".report-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	out := bufio.NewWriter(f)
	err = r.Write(out, opt)
	if err := errors.Join(err, out.Flush(), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), target)
}
