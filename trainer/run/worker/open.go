package worker

import (
	"cmp"
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// Options configure a worker, apart from its place in the run.
type Options struct {
	Config      *config.Config
	Dir         string // the resolved run.dir, or the evaluation's own folder
	Task        task.Task
	Observer    metrics.Observer
	From        *archive.Manifest    // the checkpoint to continue from; nil: start from the beginning
	Checkpoints string               // folder of the run's checkpoints; "": within Dir
	Process     *assemble.Process    // holds the devices and models of the agents here
	NoTraining  bool                 // evaluation: without a learner
	Gateway     bool                 // programs may use the agent
	Terms       map[string]term.Term // loss terms of the program, by agent; may be nil
	FS          durable.FS           // file system for checkpoints and ledgers; nil: the disk
	Stop        <-chan struct{}      // closed to request a clean stop; may be nil
}

// Open builds the worker of a member's agent from the state o.From.
func Open(ctx context.Context, o Options, m *store.Member) (w *Worker, err error) {
	name := m.Agent()
	a := o.Config.Agent(name)
	w = &Worker{common: &common{cfg: o.Config, agent: a, name: name, main: a.IsMain(), observer: o.Observer, member: m}}
	w.stops = &stops{common: w.common, here: o.Stop}
	defer func() {
		if err != nil {
			w.Close(context.WithoutCancel(ctx))
			w, err = nil, fmt.Errorf("agent %s: %w", name, err)
		}
	}()
	if err = w.assemble(ctx, o); err != nil {
		return w, err
	}
	if o.From != nil {
		w.from = o.From.Step
		if err = w.archive.Restore(ctx, *o.From); err != nil {
			return w, err
		}
	}
	if err = w.parts.CheckFollowerWeights(ctx); err != nil || o.NoTraining {
		return w, err
	}
	if o.From != nil && o.Config.KLToColdStart(a) {
		if err = w.coldStart().takeReference(ctx); err != nil {
			return w, err
		}
	}
	if text := assemble.KLWarning(o.Config); text != "" && o.Config.Learns(a) {
		w.observer.Note(metrics.Warnf(w.name, metrics.TopicSettings, "%s", text))
	}
	if w.main {
		for _, text := range assemble.RowWarnings(o.Config, w.parts.Player.Task) {
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicTask, "%s", text))
		}
	}
	return w, w.archive.Begin(ctx, o.From)
}

// assemble loads the agent and gives each part of the worker the objects it needs.
func (w *Worker) assemble(ctx context.Context, o Options) (err error) {
	opt := assemble.AgentOptions{Config: o.Config, Agent: w.name, Task: o.Task, Process: o.Process, Term: o.Terms[w.name], Gateway: o.Gateway,
		Note:   func(text string) { o.Observer.Note(metrics.Infof(w.name, metrics.TopicEngine, "%s", text)) },
		Learns: !o.NoTraining && (o.Config.Learns(w.agent) || o.From == nil && o.Config.ColdStarts(w.agent))}
	if o.From != nil {
		opt.Weights = archive.Checkpoints{Dir: o.checkpoints()}.AgentDir(o.From.Step, w.name)
	}
	p, err := assemble.OpenAgent(ctx, opt)
	if err != nil {
		return err
	}
	w.parts, w.learner = p, p.Learner
	if p.Model != nil {
		w.contextTokens = w.agent.ContextTokens(p.Model.MaxPosition())
	}
	for _, note := range p.Notes {
		w.observer.Note(metrics.Infof(w.name, metrics.TopicModel, "%s", note))
	}
	if deterministic, err := assemble.Deterministic(o.Config); err != nil || deterministic && !p.Policy.Deterministic() {
		return cmp.Or(err, fmt.Errorf("the configuration makes the run deterministic, but the policy of %s is not: please report this fault", w.name))
	}
	chosen := queries{o.Config, p.Player.Task, trainingPositionOf(o.From), p.Rules.Rewards}
	heldOut, err := assemble.HeldOutDigest(o.Config)
	if err != nil {
		return err
	}
	w.archive = archive.New(w.archiveSettings(o, chosen, heldOut), w.member, parameters{w})
	n := normaliser{device: p.Device, rules: p.Rules}
	w.rollouts = &rollouts{common: w.common, player: p.Player, policy: p.Policy, normaliser: n, stops: w.stops, lost: p.FollowerError,
		queries: chosen, programs: programs{common: w.common, policy: p.Policy, queries: chosen, gateway: p.Gateway}}
	w.reports = &reports{common: w.common, player: p.Player, policy: p.Policy, device: p.Device, archive: w.archive, heldOutDigest: heldOut}
	w.steps = &steps{common: w.common, policy: p.Policy, rules: p.Rules, normaliser: n, archive: w.archive, reports: w.reports}
	return nil
}

// archiveSettings returns the settings of the agent's archive.
func (w *Worker) archiveSettings(o Options, chosen queries, heldOut string) archive.Options {
	manifest := func(step int64) archive.Manifest {
		return archive.Manifest{Run: o.Config.Run.Name, Step: step, ConfigDigest: o.Config.Digest(), Drawn: chosen.drawn(step)}
	}
	kept := archive.Options{Dir: o.Dir, CheckpointsDir: o.checkpoints(), Agent: w.name, Team: o.Config.AgentNames(), Manifest: manifest,
		Keep: o.Config.Run.Keep, CPUFeatures: CPUFeatures(), DType: w.parts.SaveDType, SaveMoments: o.Config.Run.SaveMoments,
		Announce: w.main || len(o.Process.Agents) <= 1, Observer: o.Observer, FS: o.FS}
	if !o.NoTraining { // a separate evaluation may differ
		kept.HeldOutDigest = heldOut
	}
	if e := w.agent.Model.Endpoint; e != nil {
		kept.Endpoint = &store.Endpoint{URL: e.URL, Model: e.Name}
		w.observer.Note(metrics.Infof(w.name, metrics.TopicStart,
			"its model %s is hosted at %s: it is not trained, and the run is not deterministic", e.Name, e.URL))
	} else {
		kept.Tokenizer = w.parts.Tokenizer.Files()
	}
	return kept
}

// coldStart returns the agent's cold start.
func (w *Worker) coldStart() *coldStart {
	return &coldStart{common: w.common, parts: w.parts, archive: w.archive, from: w.from, stops: w.stops}
}

// checkpoints returns the folder of the run's checkpoints.
func (o Options) checkpoints() string { return cmp.Or(o.Checkpoints, archive.CheckpointsDir(o.Dir)) }

// CPUFeatures returns the properties of the CPU that determine the bits of results: its features, by which LibTorch chooses
// its kernels, and the instruction set of our kernels. The instruction set is a lower one if a kernel failed its check.
func CPUFeatures() string { return torch.CPUFeatures() + ", kernels " + kernels.ISA() }
