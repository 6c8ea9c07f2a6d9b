package trainer

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"runtime"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/health"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/policy/local"
	"github.com/mgrpo/mgrpo/trainer/policy/standalone"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// Setup is what a worker is made of beside its own agent.
type Setup struct {
	Config      *config.Config
	Dir         string // run.dir, resolved
	Task        task.Task
	Observer    metrics.Observer
	Health      *health.Server     // learns of the worker; nil: nobody does
	Offers      []archive.Manifest // the checkpoints at hand, newest first
	Date        string             // YYYY-MM-DD, the run's as far as this process knows
	From        *archive.Manifest  // the one of them to continue; nil starts afresh
	Checkpoints string             // folder of the run's checkpoints; "": within Dir
	Local       int                // agents in this process, among which its cores are shared out; 0 means 1
	Frozen      bool               // no learner at all: evaluation
	Stop        <-chan struct{}    // closed to ask for a clean stop; may be nil
}

// Open loads the model of a member's agent and allocates its engine and learner.
func Open(ctx context.Context, s Setup, m *store.Member) (w *Worker, err error) {
	name := m.Agent()
	a := s.Config.Agent(name)
	w = &Worker{cfg: s.Config, agent: a, name: name, main: a.Role == "main", alone: s.Local <= 1, observer: s.Observer,
		member: m, task: s.Task, dir: s.Dir, run: CheckpointsOf(s.Dir, name), saved: -1, stop: s.Stop}
	if s.Checkpoints != "" {
		w.run.Dir = s.Checkpoints
	}
	defer func() {
		if err != nil {
			w.Close(context.WithoutCancel(ctx))
			w, err = nil, fmt.Errorf("agent %s: %w", name, err)
		}
	}()
	w.settings()
	if w.device, err = torch.Open(a.Device, threads(s)); err != nil {
		return w, err
	}
	if err = w.load(ctx, s); err != nil {
		return w, err
	}
	w.params = model.All(w.model)
	if err = w.speak(ctx); err != nil {
		return w, err
	}
	if !s.Frozen && (w.cfg.Learns(a) || s.From == nil && w.cfg.ColdStarts(a)) {
		if err = w.openLearner(ctx); err != nil {
			return w, err
		}
	}
	w.inFlight = w.cfg.Slots(w.agent)
	engine, err := local.New(ctx, w.model, local.Options{Slots: w.inFlight, Context: w.agent.ContextTokens(w.model.MaxPosition()), TokenBytes: w.tokenizer.TokenBytes, Overlap: w.cfg.GRPO.MaxLag > 0})
	if err != nil {
		return w, err
	}
	w.policy = engine // not before: an interface that holds a nil engine is not nil
	if s.From != nil {
		w.from, w.saved = s.From.Step, s.From.Step
		if err = w.restore(ctx, s.From); err != nil {
			return w, err
		}
	}
	if s.Frozen {
		return w, nil
	}
	if w.cfg.Learns(a) {
		if w.snapshot, err = newSnapshot(w.params.Numel()); err != nil {
			return w, err
		}
	}
	return w, w.goOn(s.From)
}

// settings derives what the worker computes with from the configuration.
func (w *Worker) settings() {
	g := w.cfg.GRPO
	w.weights = mgrpo.RewardWeights{
		Main: mgrpo.MainWeights{Format: g.Reward.Main.Format, Correct: g.Reward.Main.Correct},
		Sub:  mgrpo.SubWeights{Format: g.Reward.Sub.Format, Main: g.Reward.Sub.Main, Expert: g.Reward.Sub.Expert},
	}
	w.align = mgrpo.Align{Mode: mgrpo.AlignMode(g.Align.Mode), D: w.agent.Align.D}
	w.convention = conventionOf(g)
	w.schedule = scheduleOf(w.agent.Optimizer, w.cfg.Run.Steps)
	w.limits = limitsOf(w.agent.Limits)
}

// load brings the weights in: of the checkpoint to continue, the configured folder or file, or random ones.
func (w *Worker) load(ctx context.Context, s Setup) (err error) {
	opt := model.Options{Compute: w.computeType(), HalfCopy: w.agent.Engine.DType == "bf16", MaxPosition: w.agent.ContextTokens(math.MaxInt)}
	path := ""
	switch {
	case s.From != nil:
		path = agentDir(w.run, s.From.Step, w.name)
	case w.agent.Model.Shape == nil:
		if path, err = w.cfg.Find(w.agent.Model.Path); err != nil {
			return w.cfg.Fault("agents."+w.name+".model", err)
		}
	}
	if path == "" {
		return w.initialise(ctx, opt)
	}
	src, err := weights.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	if w.tokenizer, err = standalone.TokenizerOf(path, src); err != nil {
		return err
	}
	w.model, err = model.Load(ctx, w.device, src, opt)
	return err
}

func (w *Worker) initialise(ctx context.Context, opt model.Options) (err error) {
	shape := w.agent.Model.Shape
	if w.tokenizer, err = shapeTokenizer(w.cfg, shape); err != nil {
		return err
	}
	cfg, err := shapeConfig(shape, w.tokenizer)
	if err != nil {
		return err
	}
	seed := shape.InitSeed
	if seed == 0 {
		seed = w.cfg.Run.Seed ^ hash(w.name)
	}
	w.model, err = model.Random(ctx, w.device, cfg, seed, opt)
	return err
}

func (w *Worker) openLearner(ctx context.Context) (err error) {
	opt := learner.Options{
		Loss: w.cfg.GRPO.Objective, Recomputed: w.cfg.GRPO.Old == "recomputed", Temperature: w.cfg.GRPO.Temperature,
		Adam: adamOf(w.agent.Optimizer), MicroBatchTokens: w.agent.Engine.MicroBatchTokens,
		Checkpoint: w.agent.Engine.CheckpointActivations,
	}
	if w.cfg.GRPO.KL != "none" && w.cfg.Learns(w.agent) {
		if opt.Reference, err = w.reference(ctx); err != nil {
			return err
		}
		if w.cfg.GRPO.KL == "k1" {
			w.observer.Note(metrics.Warnf(w.name, metrics.TopicSettings, "as a loss, grpo.kl k1 has a gradient of 0 in expectation; k2 or k3 have one"))
		}
	}
	w.learner, err = learner.New(ctx, w.model, w.params, opt)
	return err
}

func (w *Worker) computeType() torch.DType {
	if w.agent.ComputesBF16() {
		return torch.BFloat16
	}
	return torch.Float32
}

// threads shares the cores out: every agent on the CPU has its own.
func threads(s Setup) int {
	n := s.Config.Run.Threads
	if n == 0 {
		n = runtime.NumCPU()
	}
	return max(n/max(s.Local, 1), 1)
}

// AgentNames are the agents that take part in the configured arm, main first.
func AgentNames(cfg *config.Config) []string {
	names := []string{cfg.Main().Name}
	for _, a := range cfg.Subs() {
		names = append(names, a.Name)
	}
	return names
}

func (w *Worker) agentNames() []string { return AgentNames(w.cfg) }

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// reference loads the weights of the KL term: those configured, else the ones the run starts from.
func (w *Worker) reference(ctx context.Context) (*model.Model, error) {
	named, key := w.agent.Reference, ".reference"
	if named == "" && w.agent.Model.Shape == nil {
		named, key = w.agent.Model.Path, ".model"
	}
	if named == "" {
		return nil, fmt.Errorf("grpo.kl is %s and the model starts from random weights: name reference weights in agents.%s.reference", w.cfg.GRPO.KL, w.name)
	}
	path, err := w.cfg.Find(named)
	if err != nil {
		return nil, w.cfg.Fault("agents."+w.name+key, err)
	}
	src, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	return model.Load(ctx, w.device, src, model.Options{Compute: w.computeType(), MaxPosition: w.agent.ContextTokens(math.MaxInt)})
}
