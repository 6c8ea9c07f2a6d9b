package trainer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// EvaluateOptions are the options of Evaluate in addition to the configuration. The zero value evaluates the run's newest complete
// checkpoint with all agents in this process.
type EvaluateOptions struct {
	Checkpoint string           // folder of a step; "": the run's newest complete one
	Agents     []string         // agents that this process runs; the others run in processes with the same store.url; nil: all
	Against    []score.Answers  // answers of an earlier evaluation of the same questions to compare with; may be nil
	Task       task.Task        // replaces the configured task; may be nil
	Observer   metrics.Observer // receives records and notes; may be nil
	Gateway    *Gateway         // gives programs access to the agents; needed if the configuration has a gateway
}

// check returns an error if the options do not fit the configuration.
func (o EvaluateOptions) check(cfg *config.Config) error {
	if err := config.CheckAgents(cfg, o.Agents); err != nil {
		return err
	}
	if o.Against != nil && o.Agents != nil && !slices.Contains(o.Agents, cfg.Main().Name) {
		return fmt.Errorf("%s is not the main agent, and only answers of %s can be compared with earlier ones: compare them in its evaluation",
			strings.Join(o.Agents, ", "), cfg.Main().Name)
	}
	return nil
}

// Evaluate evaluates a checkpoint of a run. It plays the same rollouts as the run itself when it evaluates that version, in
// a separate store, so the numbers are the same.
func Evaluate(ctx context.Context, cfg *config.Config, opt EvaluateOptions) (e Evaluation, err error) {
	if err := opt.check(cfg); err != nil {
		return e, err
	}
	records := &lastRecords{Observer: observed(opt.Observer), byAgent: map[string]metrics.Record{}}
	opt.Observer = records
	err = withCheckpoint(ctx, cfg, opt, useEvaluate, func(ctx context.Context, t *team, from archive.Manifest, stepDir string) error {
		e = Evaluation{Checkpoint: stepDir, Samples: cfg.Eval.Samples, Dir: evaluationDir(cfg, useEvaluate, stepDir)}
		return t.forEachWorker(ctx, func(w *worker.Worker, ctx context.Context) error {
			answers, err := w.Evaluate(ctx, from.Step)
			if err != nil {
				return err
			}
			if w.Main() {
				e.Answers = score.AnswersOf(answers)
			}
			err = w.Member().Round.Barrier(ctx, store.Finished, w.ReportWaiting)
			switch {
			case !w.Main():
				return err
			case err != nil && ctx.Err() == nil: // the answers are complete
				opt.Observer.Note(metrics.Warnf(w.Name(), metrics.TopicStop, "not all agents reached the end of the evaluation: %v", err))
				return nil
			case err != nil:
				return err
			}
			return w.Member().Checkpoints.Trim(ctx, from.Step)
		})
	})
	if records.unsaved {
		e.Dir = ""
	}
	for _, name := range cfg.AgentNames() {
		if r, ok := records.byAgent[name]; ok {
			e.Records = append(e.Records, r)
		}
	}
	if worker.Classify(err) == worker.RoundOver {
		err = fmt.Errorf("a worker of the evaluation was lost: start the workers of all agents again (%w)", err)
	}
	if err == nil && e.Err() == nil && opt.Against != nil {
		e.Difference = new(score.Difference)
		*e.Difference, err = score.Compare(opt.Against, e.Answers, cfg.Run.Seed)
	}
	return e, err
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
	digest := sha256.Sum256(append(cfg.Dump("/"), stepDir...))
	return filepath.Join(cfg.RunDir(), string(use), fmt.Sprintf("%s-%dx%d-%x", filepath.Base(stepDir), cfg.Eval.Queries, cfg.Eval.Samples, digest[:4]))
}

// besideRun returns the configuration of agents that run on one machine beside their run. Without other processes they have a store of
// their own.
func besideRun(cfg *config.Config, alone bool) *config.Config {
	c := cfg.OnOneMachine()
	if alone {
		c.Store = config.Store{Timeout: cfg.Store.Timeout, Lease: cfg.Store.Lease, MaxDeliveries: cfg.Store.MaxDeliveries}
	}
	return c
}

// withCheckpoint opens agents of a checkpoint in this process, with a separate store, and calls do with them.
func withCheckpoint(ctx context.Context, cfg *config.Config, opt EvaluateOptions, use checkpointUse,
	do func(context.Context, *team, archive.Manifest, string) error) (err error) {
	stepDir, observer, names := opt.Checkpoint, observed(opt.Observer), agentsOf(cfg, opt.Agents)
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
	if stepDir == "" {
		if stepDir, err = newestStepDir(cfg, names); err != nil {
			return err
		}
	}
	from, err := checkpointOf(cfg, stepDir, names, observer)
	if err != nil {
		return err
	}
	dir := evaluationDir(cfg, use, stepDir)
	if use == useEvaluate {
		var release func() error
		ctx, release, err = lockFolder(ctx, "the folder of the evaluation", dir, sharing("an evaluation of the run "+cfg.Run.Name, opt.Agents != nil), observer)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	date, err := dateOf(cfg, true)
	if err != nil {
		return err
	}
	team, err := openTeam(ctx, teamSpec{hooks: hooks{gateway: opt.Gateway}, date: date,
		offers: offeredCheckpoints{points: []archive.Manifest{from}},
		Setup: worker.Setup{Config: besideRun(cfg, opt.Agents == nil), Dir: dir, Checkpoints: filepath.Dir(stepDir), NoTraining: true,
			Task: opt.Task, Observer: observer, Process: &assemble.Process{Agents: names}}})
	if err != nil {
		return err
	}
	for _, w := range team.workers {
		err = errors.Join(err, w.Parts.Policy.UpdateWeights(ctx, from.Step))
	}
	if err != nil {
		return team.giveUp(ctx, err)
	}
	return errors.Join(do(ctx, team, from, stepDir), team.close(context.WithoutCancel(ctx)))
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

// lastRecords is an observer that keeps the newest record of each agent.
type lastRecords struct {
	metrics.Observer
	mu      sync.Mutex
	byAgent map[string]metrics.Record
	unsaved bool // a file of trajectories could not be written
}

func (r *lastRecords) Note(n metrics.Note) {
	r.mu.Lock()
	r.unsaved = r.unsaved || n.Topic == metrics.TopicFiles
	r.mu.Unlock()
	r.Observer.Note(n)
}

func (r *lastRecords) Report(record metrics.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byAgent[record.Agent] = record
}
