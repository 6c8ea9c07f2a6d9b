package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/durable"
	"github.com/mgrpo/mgrpo/trainer/health"
	"github.com/mgrpo/mgrpo/trainer/live"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// setup is what a worker needs in addition to its own agent.
type setup struct {
	Config      *config.Config
	Dir         string // run.dir, resolved
	Task        task.Task
	Observer    metrics.Observer
	Health      *health.Server    // publishes the worker's state; may be nil
	Live        *live.Page        // shows the worker; may be nil
	Offers      beginnings        // the available checkpoints
	Date        string            // YYYY-MM-DD, the date of the run as far as this process knows it
	From        *archive.Manifest // the checkpoint to continue from; nil: start from the beginning
	Checkpoints string            // folder of the run's checkpoints; "": within Dir
	Process     *assemble.Process // holds the devices and models of the agents here
	Frozen      bool              // evaluation: without a learner
	FS          durable.FS        // file system for checkpoints and ledgers; nil: the disk
	Gateway     *Gateway          // of this process; may be nil
	Stop        <-chan struct{}   // closed to ask for a clean stop; may be nil
}

// openWorker builds the worker of a member's agent from the state s.From.
func openWorker(ctx context.Context, s setup, m *store.Member) (w *worker, err error) {
	name := m.Agent()
	a := s.Config.Agent(name)
	w = &worker{cfg: s.Config, agent: a, name: name, main: a.Role == "main", observer: s.Observer,
		member: m, stop: s.Stop}
	defer func() {
		if err != nil {
			w.close(context.WithoutCancel(ctx))
			w, err = nil, fmt.Errorf("agent %s: %w", name, err)
		}
	}()
	want := assemble.Wanted{Config: s.Config, Agent: name, Task: s.Task, Process: s.Process,
		Note:   func(text string) { s.Observer.Note(metrics.Infof(name, metrics.TopicEngine, "%s", text)) },
		Learns: !s.Frozen && (s.Config.Learns(a) || s.From == nil && s.Config.ColdStarts(a))}
	if s.From != nil {
		want.Weights = archive.Checkpoints{Dir: s.checkpoints()}.AgentDir(s.From.Step, name)
	}
	if w.Parts, err = assemble.Agent(ctx, want); err != nil {
		return w, err
	}
	for _, note := range w.Notes {
		w.observer.Note(metrics.Infof(name, metrics.TopicModel, "%s", note))
	}
	if deterministic, err := assemble.Deterministic(s.Config); err != nil || deterministic && !w.Policy.Deterministic() {
		return w, cmp.Or(err, errors.New("the store was told that the run is deterministic, but the policy is not"))
	}
	kept := archive.Settings{Dir: s.Dir, CheckpointsDir: s.checkpoints(), Agent: name, Team: s.Config.AgentNames(), Run: s.Config.Run.Name,
		ConfigDigest: s.Config.Digest(), Keep: s.Config.Run.Keep, CPUFeatures: cpuFeatures(), DType: w.SaveDType,
		Announce: w.main || len(s.Process.Agents) <= 1, Observer: s.Observer, FS: s.FS}
	if e := a.Model.Endpoint; e != nil {
		kept.Endpoint = &store.Endpoint{URL: e.URL, Model: e.Name}
		w.observer.Note(metrics.Infof(w.name, metrics.TopicStart, "its model %s is hosted at %s: it is not trained, and the run is not deterministic", e.Name, e.URL))
	} else {
		kept.Tokenizer = w.Tokenizer.Files()
	}
	w.archive = archive.New(kept, m, parameters{w})
	if s.From != nil {
		w.from = s.From.Step
		if err = w.archive.Restore(ctx, *s.From); err != nil {
			return w, err
		}
	}
	if err = w.Compare(ctx); err != nil || s.Frozen {
		return w, err
	}
	if s.From != nil && s.Config.KLToColdStart(a) {
		if err = w.takeReference(ctx); err != nil {
			return w, err
		}
	}
	if s.Config.GRPO.KL == "k1" && s.Config.Learns(a) {
		w.observer.Note(metrics.Warnf(w.name, metrics.TopicSettings, "grpo.kl: the gradient of k1 as a loss is 0 in expectation; use k2 or k3"))
	}
	return w, w.archive.Begin(ctx, s.From)
}

// checkpoints returns the folder of the run's checkpoints.
func (s setup) checkpoints() string { return cmp.Or(s.Checkpoints, archive.CheckpointsDir(s.Dir)) }

// context returns the largest number of tokens in a conversation.
func (w *worker) context() int { return w.agent.ContextTokens(w.Model.MaxPosition()) }
