package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// configFile is the name of the configuration in a run's folder.
const configFile = "config.yaml"

// ErrRunComplete is the error of a run that has nothing left to train.
var ErrRunComplete = errors.New("the run is complete")

// offeredCheckpoints holds the checkpoints from which a worker of this process can continue, newest first.
type offeredCheckpoints struct {
	points  []archive.Manifest
	notes   []metrics.Note // on settings, for a run that continues from one of them
	listing string
	read    func() ([]archive.Manifest, []metrics.Note, error) // reads points and notes; nil: points never change
}

// renew reads the checkpoints of a run's folder again if their manifests have changed since the last time.
func (o *offeredCheckpoints) renew(dir string) error {
	if o.read == nil {
		return nil
	}
	listing, err := archive.CheckpointsOf(dir).Listing()
	if err != nil || listing == o.listing {
		return err
	}
	o.listing = listing
	o.points, o.notes, err = o.read()
	return err
}

// startingPoints returns the checkpoints from which a worker of this process can continue, newest first, and notes on settings
// for a run that continues. The list is empty in a fresh run. A run never starts over in a folder with checkpoints, and a
// resumed run keeps its settings. files holds the digests of the run's inputs; nil: they were compared.
func startingPoints(cfg *config.Config, opt TrainOptions, files map[string]string) (points []archive.Manifest, notes []metrics.Note, err error) {
	dir := cfg.RunDir()
	checkpoints := archive.CheckpointsOf(dir, agentsOf(cfg, opt.Agents)...)
	steps, err := checkpoints.List()
	if err != nil {
		return nil, nil, err
	}
	stopped := archive.StoppedColdStarts(dir, checkpoints.Agents)
	switch {
	case !opt.Resume && len(steps) > 0:
		return nil, nil, fmt.Errorf("%s already contains checkpoints of steps %v: resume the run, or choose another run.dir", dir, steps)
	case !opt.Resume && len(stopped) > 0:
		return nil, nil, fmt.Errorf("%s already contains a stopped cold start of %s: resume the run, or choose another run.dir", dir,
			strings.Join(stopped, ", "))
	case !opt.Resume:
		return nil, nil, nil
	}
	if len(steps)+len(stopped) > 0 {
		if notes, err = keepSavedSettings(cfg, dir, files); err != nil {
			return nil, nil, err
		}
	}
	points, err = checkpoints.Usable(opt.Observer)
	switch {
	case err != nil || len(points) > 0:
	case len(stopped) > 0:
		opt.Observer.Note(metrics.Infof("", metrics.TopicStart, "%s has no checkpoint yet: the cold start continues where it was stopped, of %s", dir,
			strings.Join(stopped, ", ")))
	default:
		opt.Observer.Note(metrics.Infof("", metrics.TopicStart, "%s has no checkpoint yet: the run starts from the beginning", dir))
	}
	return points, notes, err
}

func completeError(cfg *config.Config, m archive.Manifest) error {
	return fmt.Errorf("%w: its newest checkpoint is of step %d, and run.steps is %d; to continue training, raise run.steps, for example to %d",
		ErrRunComplete, m.Step, cfg.Run.Steps, 2*m.Step)
}

// complete reports whether the last step is done and, if queries are held out, its version was evaluated.
func complete(cfg *config.Config, m archive.Manifest, t task.Task) bool {
	if m.Step != cfg.Run.Steps || t.EvalSize() == 0 {
		return m.Step >= cfg.Run.Steps
	}
	return archive.EvaluationsOf(m).Done(m.Step)
}

// goBack reports where and with which settings the team continues, and renames newer checkpoints, since their steps will be repeated.
func (g *workerGroup) goBack(ctx context.Context) error {
	confirm := func() error { // newer checkpoints may belong to a successor
		for _, m := range g.members {
			if err := m.ConfirmPlace(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	for _, n := range g.offers.notes {
		g.options.Observer.Note(n)
	}
	for _, why := range g.start.Refused {
		g.options.Observer.Note(metrics.Infof("", metrics.TopicStart, "%s", why))
	}
	checkpoints := archive.CheckpointsOf(g.options.Dir)
	if g.options.From == nil {
		if at := g.offers.points; len(at) > 0 {
			g.options.Observer.Note(metrics.Warnf("", metrics.TopicStart,
				"starting from the beginning because other workers have no checkpoint; the checkpoint of step %d is set aside", at[0].Step))
		}
		return checkpoints.GoBack(archive.Manifest{Step: store.FromStart}, confirm)
	}
	from := g.options.From.Step
	g.options.Observer.Note(metrics.Infof("", metrics.TopicStart, "resuming from %s, step %d of %d", checkpoints.StepDir(from), from,
		g.options.Config.Run.Steps))
	deterministic, err := assemble.Deterministic(g.options.Config)
	if err != nil {
		return err
	}
	for _, m := range g.members {
		if part, _ := g.options.From.Agent(m.Agent()); deterministic && part.CPUFeatures != worker.CPUFeatures() {
			g.options.Observer.Note(metrics.Warnf(m.Agent(), metrics.TopicStart,
				"the checkpoint was written on a CPU with %s, but this one has %s: bits may differ from here on", part.CPUFeatures, worker.CPUFeatures()))
		}
	}
	return checkpoints.GoBack(*g.options.From, confirm)
}

// dateOf returns the date that templates print as today's: the configured date, the date in the run's folder, or today's.
func dateOf(cfg *config.Config, resume bool) (string, error) {
	today := time.Now().Format(time.DateOnly)
	if cfg.Run.Date != "" || !resume {
		return cmp.Or(cfg.Run.Date, today), nil
	}
	old, err := config.Load(filepath.Join(cfg.RunDir(), configFile), nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return today, nil
	case err != nil:
		return "", fmt.Errorf("reading the run's date: %w; give it as run.date", err)
	}
	return cmp.Or(old.Run.Date, today), nil
}

// keepSavedSettings refuses changes to settings that a resumed run must keep. It changes cfg: schedules that keep their last step
// get the saved decay steps. Its notes list changed files, changed settings, and schedules that end before the last step.
func keepSavedSettings(cfg *config.Config, dir string, files map[string]string) (notes []metrics.Note, err error) {
	path := filepath.Join(dir, configFile)
	old, err := config.Load(path, nil)
	if err != nil {
		return nil, fmt.Errorf("resuming: reading the saved configuration of the run: %w", err)
	}
	saved, err := readInputs(dir)
	if err != nil {
		return nil, fmt.Errorf("resuming: %w", err)
	}
	if notes, err = saved.compare(files); err != nil {
		return nil, err
	}
	if given, original := cfg.Run.Date, old.Run.Date; given != "" && original != "" && given != original {
		return nil, fmt.Errorf("resuming: run.date is %s, but in %s the run's date is %s: remove it", given, path, original)
	}
	if err := keepDecaySteps(cfg, old); err != nil {
		return nil, err
	}
	keys := cfg.DiffForResume(old)
	if moved := config.InFolder(old, saved.Dir); len(keys) > 0 && saved.Dir != "" && len(cfg.DiffForResume(moved)) == 0 {
		old, keys = moved, nil // the run's folder was moved alone
	}
	if len(keys) > 0 {
		return nil, fmt.Errorf("resuming: these keys must be the same as in %s, but differ: %s; set them back, or choose another run.dir. %s",
			path, strings.Join(keys, ", "), fixedReason)
	}
	if keys := cfg.ChangedOnResume(old); len(keys) > 0 {
		notes = append(notes, metrics.Warnf("", metrics.TopicStart, "the run continues with other settings: %s; the optimizers keep their moments",
			strings.Join(keys, ", ")))
	}
	for i := range cfg.Agents {
		if text := afterDecay(cfg, old, &cfg.Agents[i]); text != "" {
			notes = append(notes, metrics.Warnf(cfg.Agents[i].Name, metrics.TopicStart, "%s", text))
		}
	}
	return notes, nil
}

// keepDecaySteps gives each schedule without a configured decay_steps its earlier last step: the last step of the run as
// configured when the run began, even if run.steps was raised several times since. Raising run.steps prolongs a run and does
// not change the learning rates of its past steps. A configured decay_steps is compared like any other key.
func keepDecaySteps(cfg, old *config.Config) error {
	for i := range cfg.Agents {
		a := &cfg.Agents[i]
		before := old.Agent(a.Name)
		if before == nil || !a.Optimizer.EndsWithRun || before.Optimizer.Schedule == config.ConstantSchedule {
			continue
		}
		a.Optimizer.DecaySteps = before.Optimizer.DecaySteps
		if o := a.Optimizer; o.Schedule != config.ConstantSchedule && o.Warmup > o.DecaySteps {
			key := "agents." + a.Name + ".optimizer"
			return fmt.Errorf("resuming: %s.warmup is %d, but the schedule (%s) ends at step %d, as it did when the run began: "+
				"set %s.decay_steps=%d, too, or a shorter warmup", key, o.Warmup, o.Schedule, o.DecaySteps, key, cfg.Run.Steps)
		}
	}
	return nil
}

// afterDecay returns a note on the steps that follow the end of an agent's schedule, with the keys that give the steps another
// learning rate. It returns "" if there are no such steps, or if decay_steps is configured and run.steps was not raised.
func afterDecay(cfg, old *config.Config, a *config.Agent) string {
	o := a.Optimizer
	if !cfg.Learns(a) || o.Schedule == config.ConstantSchedule || o.DecaySteps >= cfg.Run.Steps || !o.EndsWithRun && cfg.Run.Steps <= old.Run.Steps {
		return ""
	}
	key := "agents." + a.Name + ".optimizer"
	return fmt.Sprintf("the schedule (%s) ends at step %d, as it did when the run began, but run.steps is now %d: the learning rate stays at its "+
		"floor, %g, after step %d. To decay until the last step, set %s.decay_steps=%d; for a constant rate, set %s.schedule=constant and %s.lr",
		o.Schedule, o.DecaySteps, cfg.Run.Steps, o.LR*o.Floor, o.DecaySteps, key, cfg.Run.Steps, key, key)
}

// fixedReason explains why most keys of a run cannot change.
const fixedReason = "They determine which questions were seen and held out, and the meaning of the weights, rewards and log-probs of past steps. " +
	"A new run can begin with a checkpoint of this one: set agents.NAME.model to the agent's folder in the checkpoint"
