package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

type checkpointCmd struct {
	List   checkpointListCmd   `cmd:"" help:"List the checkpoints."`
	Verify checkpointVerifyCmd `cmd:"" help:"Read every byte and report every fault; the exit status is 1 if there is a fault."`
	Prune  checkpointPruneCmd  `cmd:"" help:"Remove all checkpoints except the newest, the best and the cold start's."`
}

// checkpointFlags select the checkpoints.
type checkpointFlags struct {
	Run   string   `arg:"" name:"RUN" help:"Folder of the run, such as runs/NAME, or its configuration."`
	Set   []string `sep:"none" placeholder:"KEY=VALUE" help:"Override a key of the configuration. May be repeated."`
	Agent []string `placeholder:"NAME" help:"Consider only this agent's files, if the other agents' files are on other servers. May be repeated."`
}

// open finds the run's checkpoints and the number of them to keep.
func (f checkpointFlags) open() (checkpoints archive.Checkpoints, keep int, err error) {
	const usual = 2
	dir, keep := f.Run, usual
	if info, err := os.Stat(f.Run); err == nil && info.Mode().IsRegular() {
		cfg, err := config.Load(f.Run, f.Set)
		if err != nil {
			return checkpoints, 0, err
		}
		dir, keep = cfg.RunDir(), cfg.Run.Keep
	}
	checkpoints = archive.CheckpointsOf(dir, f.Agent...)
	if entries, err := os.ReadDir(dir); err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "step-") }) {
		checkpoints = archive.CheckpointsOf(filepath.Dir(filepath.Clean(dir)), f.Agent...) // the folder of the checkpoints themselves
	}
	if info, err := os.Stat(checkpoints.Dir); err != nil || !info.IsDir() {
		return checkpoints, keep, fmt.Errorf("%s: no run has written checkpoints here: want a run's folder, such as runs/NAME, which contains a folder %s",
			dir, filepath.Base(checkpoints.Dir))
	}
	checkpoints, err = localAgents(checkpoints)
	return checkpoints, keep, err
}

// localAgents leaves out agents without files in any checkpoint: their files are on their own servers.
func localAgents(checkpoints archive.Checkpoints) (archive.Checkpoints, error) {
	all, err := checkpoints.Summaries()
	if err != nil || checkpoints.Agents != nil {
		return checkpoints, err
	}
	var here, elsewhere []string
	for _, s := range all {
		here = append(here, s.Agents...)
	}
	for _, s := range all {
		for _, a := range s.Manifest.Agents {
			if !slices.Contains(here, a.Name) && !slices.Contains(elsewhere, a.Name) {
				elsewhere = append(elsewhere, a.Name)
			}
		}
	}
	if len(here) > 0 && len(elsewhere) > 0 {
		slices.Sort(here)
		checkpoints.Agents = slices.Compact(here)
		fmt.Fprintf(os.Stderr, "mgrpo: of %s only: of %s there is nothing in %s\n", strings.Join(checkpoints.Agents, ", "), strings.Join(elsewhere, ", "),
			checkpoints.Dir)
	}
	return checkpoints, nil
}

// bestVersion returns the version that the newest checkpoint names as the best; ok is false if it names none.
func bestVersion(all []archive.Summary) (version int64, ok bool) {
	for _, s := range slices.Backward(all) {
		if s.Fault == nil {
			if b := archive.EvaluationsOf(s.Manifest).Best; b != nil {
				return b.Version, true
			}
			return 0, false
		}
	}
	return 0, false
}

type checkpointListCmd struct{ checkpointFlags }

func (c *checkpointListCmd) Run() error {
	checkpoints, _, err := c.open()
	if err != nil {
		return err
	}
	all, err := checkpoints.Summaries()
	if err != nil {
		return err
	}
	best, hasBest := bestVersion(all)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "checkpoint\tsize\tdigest\tagents here\t")
	for _, s := range all {
		state := "complete"
		if s.Fault != nil {
			state = s.Fault.Error()
		} else if hasBest && s.Manifest.Step == best {
			state += ", best"
		}
		fmt.Fprintf(t, "%s\t%s\t%.8s\t%s\t%s\n", s.Name, memory.Size(s.Bytes), s.Manifest.Digest, strings.Join(s.Agents, ","), state)
	}
	return t.Flush()
}

type checkpointVerifyCmd struct{ checkpointFlags }

func (c *checkpointVerifyCmd) Run() error {
	checkpoints, _, err := c.open()
	if err != nil {
		return err
	}
	offers, skipped, err := checkpoints.Offers()
	if err != nil {
		return err
	}
	if len(offers)+len(skipped) == 0 {
		return fmt.Errorf("%s: %w", checkpoints.Dir, archive.ErrNoCheckpoint)
	}
	faults := 0
	for _, s := range skipped {
		if s.Unfinished() && (len(offers) == 0 || s.Step > offers[0].Step) {
			fmt.Printf("step %d: unfinished: it is being written, or a crash left it\n", s.Step)
			continue
		}
		fmt.Printf("step %d: %v\n", s.Step, s.Reason)
		faults++
	}
	last := int64(-1)
	for _, m := range offers {
		if m.Step != last { // an evaluated step is offered twice
			fmt.Printf("step %d: whole\n", m.Step)
		}
		last = m.Step
	}
	if faults > 0 {
		return fmt.Errorf("%d of the checkpoints in %s are not whole", faults, checkpoints.Dir)
	}
	return nil
}

type checkpointPruneCmd struct {
	checkpointFlags
	Keep   *int `placeholder:"N" help:"Number of newest checkpoints to keep, in addition to the best and step 0; absent: run.keep, or 2."`
	DryRun bool `help:"List what would be removed, without removing it."`
}

func (c *checkpointPruneCmd) Run() error {
	checkpoints, keep, err := c.open()
	if err != nil {
		return err
	}
	if c.Keep != nil {
		keep = *c.Keep
	}
	all, err := checkpoints.Summaries()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(s archive.Summary) bool { return s.Fault == nil }) {
		return fmt.Errorf("%s: %w", checkpoints.Dir, archive.ErrNoCheckpoint)
	}
	var also []int64
	if version, ok := bestVersion(all); ok {
		also = append(also, version)
	}
	doomed, err := checkpoints.Prunable(keep, also...)
	if err != nil {
		return err
	}
	verb := "removing"
	if c.DryRun {
		verb = "would remove"
	}
	for _, name := range doomed {
		fmt.Println(verb, filepath.Join(checkpoints.Dir, name))
	}
	if c.DryRun {
		return nil
	}
	return checkpoints.Prune(keep, also...)
}
