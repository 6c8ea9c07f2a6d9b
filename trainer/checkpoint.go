package trainer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// CheckpointOptions are the options that Evaluate, Serve and Chat have in common, in addition to the configuration. The zero value uses
// the run's newest complete checkpoint.
type CheckpointOptions struct {
	Checkpoint string           // folder of a step; "": the run's newest complete one
	Task       task.Task        // replaces the configured task; may be nil
	Observer   metrics.Observer // receives notes and an evaluation's progress; may be nil
}

// A checkpointUse is a use of a checkpoint other than training. It names the folder of its output.
type checkpointUse string

const (
	useEvaluate checkpointUse = "eval" // the only one that writes trajectories
	useServe    checkpointUse = "serve"
	useChat     checkpointUse = "chat"
)

// evaluationDir returns the folder for the output of a use of a checkpoint. Its name ends with the start of a digest of
// configuration and checkpoint, so an evaluation with other settings, or of another run, does not overwrite this one.
func evaluationDir(cfg *config.Config, use checkpointUse, stepDir string) string {
	digest := sha256.Sum256(append(config.Text(cfg, "/", nil), stepDir...))
	return filepath.Join(cfg.RunDir(), string(use), fmt.Sprintf("%s-%dx%d-%x", filepath.Base(stepDir), cfg.Eval.Queries, cfg.Eval.Samples, digest[:4]))
}

// configForCheckpoint returns the configuration for agents that use a checkpoint of their run on one machine, outside the run. alone
// means that all agents are in this process; they then have an embedded store.
func configForCheckpoint(cfg *config.Config, alone bool) *config.Config {
	c := cfg.OnOneMachine()
	if alone {
		c.Store = config.Store{Timeout: cfg.Store.Timeout, Lease: cfg.Store.Lease, MaxDeliveries: cfg.Store.MaxDeliveries}
	}
	return c
}

// checkpointGroup is a worker group whose agents have the weights of a checkpoint.
type checkpointGroup struct {
	*workerGroup
	stepDir string // folder of the checkpoint
	step    int64  // version of the weights
}

// withCheckpoint opens agents of a checkpoint in this process, with a separate store, and calls do with them.
func withCheckpoint(ctx context.Context, cfg *config.Config, opt EvaluateOptions, use checkpointUse, h hooks,
	do func(context.Context, *checkpointGroup) error) (err error) {
	observer, names := observed(opt.Observer), agentsOf(cfg, opt.Agents)
	if opt.Task == nil {
		if opt.Task, err = assemble.OpenTask(cfg, len(names)); err != nil {
			return err
		}
		defer task.Close(opt.Task)
	}
	if opt.Against != nil { // reported before models are loaded and questions asked
		if err := score.SameQuestions(opt.Against, opt.Task, cfg.Eval.Queries); err != nil {
			return err
		}
	}
	stepDir, from, err := findCheckpoint(cfg, opt.Checkpoint, names, observer)
	if err != nil {
		return err
	}
	options := worker.Options{Config: configForCheckpoint(cfg, opt.Agents == nil), Dir: evaluationDir(cfg, use, stepDir), Checkpoints: filepath.Dir(stepDir),
		NoTraining: true, Task: opt.Task, Observer: observer, Process: &assemble.Process{Agents: names},
		Gateway: h.gateway != nil}
	if use == useEvaluate {
		shared := sharing("an evaluation of the run "+cfg.Run.Name, opt.Agents != nil)
		var release func() error
		if ctx, release, err = lockFolder(ctx, "the folder of the evaluation", options.Dir, shared, observer); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	g, err := openCheckpoint(ctx, options, from, h)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, &checkpointGroup{g, stepDir, from.Step}), g.close(context.WithoutCancel(ctx)))
}

// openCheckpoint opens a worker group whose policies have the weights of a checkpoint.
func openCheckpoint(ctx context.Context, options worker.Options, from archive.Manifest, h hooks) (*workerGroup, error) {
	date, err := dateOf(options.Config, true)
	if err != nil {
		return nil, err
	}
	g, err := openWorkerGroup(ctx, groupOptions{options: options, hooks: h, date: date, offers: offeredCheckpoints{points: []archive.Manifest{from}}})
	if err != nil {
		return nil, err
	}
	for _, w := range g.workers {
		err = errors.Join(err, w.Parts().Policy.UpdateWeights(ctx, from.Step))
	}
	if err != nil {
		return nil, g.giveUp(ctx, err)
	}
	return g, nil
}

// findCheckpoint returns the folder and the manifest of a checkpoint: the one in stepDir, or the newest of the run if stepDir is "".
func findCheckpoint(cfg *config.Config, stepDir string, names []string, observer metrics.Observer) (string, archive.Manifest, error) {
	if stepDir == "" {
		newest, err := newestStepDir(cfg, names)
		if err != nil {
			return "", archive.Manifest{}, err
		}
		stepDir = newest
	}
	m, err := checkpointOf(cfg, stepDir, names, observer)
	return stepDir, m, err
}

// newestStepDir returns the folder of the run's newest complete checkpoint.
func newestStepDir(cfg *config.Config, names []string) (string, error) {
	checkpoints := archive.CheckpointsOf(cfg.RunDir(), names...)
	m, err := checkpoints.Latest()
	if errors.Is(err, archive.ErrNoCheckpoint) {
		err = fmt.Errorf("%w\ntrain the team first, or name a checkpoint of another folder", err)
	}
	return checkpoints.StepDir(m.Step), err
}

// checkpointOf verifies that a step's files of the named agents are whole and belong to this team.
func checkpointOf(cfg *config.Config, stepDir string, names []string, observer metrics.Observer) (archive.Manifest, error) {
	if _, err := os.Stat(stepDir); errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(filepath.Base(stepDir), "step-") {
		return archive.Manifest{}, notAStep(cfg, stepDir)
	}
	m, err := archive.Verify(stepDir, names...)
	if err != nil {
		return m, err
	}
	if want := (archive.Checkpoints{Dir: filepath.Dir(stepDir)}).StepDir(m.Step); filepath.Base(want) != filepath.Base(stepDir) {
		return m, fmt.Errorf("%s contains step %d: rename the folder to %s", stepDir, m.Step, filepath.Base(want))
	}
	for _, name := range cfg.AgentNames() {
		if _, ok := m.Agent(name); !ok {
			return m, fmt.Errorf("%s does not contain agent %q of this configuration", stepDir, name)
		}
	}
	if m.ConfigDigest != cfg.Digest() {
		observer.Note(metrics.Warnf("", metrics.TopicSettings, "the checkpoint's run had another configuration: numbers may differ from its own"))
	}
	return m, nil
}

// notAStep returns an error that explains how a checkpoint's folder is named, and which ones the run has.
func notAStep(cfg *config.Config, dir string) error {
	checkpoints := archive.CheckpointsOf(cfg.RunDir())
	steps, err := checkpoints.List()
	if err != nil || len(steps) == 0 {
		return fmt.Errorf("%s is not a checkpoint: give the folder of a step, such as %s; this run has not written any yet", dir,
			checkpoints.StepDir(cfg.Run.Steps))
	}
	var names []string
	for _, step := range steps {
		names = append(names, filepath.Base(checkpoints.StepDir(step)))
	}
	return fmt.Errorf("%s is not a checkpoint: give the folder of a step; %s contains %s", dir, checkpoints.Dir, strings.Join(names, ", "))
}
