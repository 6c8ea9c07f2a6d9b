package trainer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/run/worker"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// EvaluateOptions are the options of Evaluate in addition to the configuration. The zero value evaluates the run's newest complete
// checkpoint with all agents in this process.
type EvaluateOptions struct {
	CheckpointOptions
	Agents  []string        // agents that this process runs; the others run in processes with the same store.url; nil: all
	Against []score.Answers // answers of an earlier evaluation of the same questions to compare with; may be nil
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
// a separate store. The numbers are the same if the agents' engines are deterministic. If the configuration has a gateway,
// Evaluate listens at its address.
func Evaluate(ctx context.Context, cfg *config.Config, opt EvaluateOptions) (e Evaluation, err error) {
	if err := opt.check(cfg); err != nil {
		return e, err
	}
	records := &lastRecords{Observer: observed(opt.Observer), byAgent: map[string]metrics.Record{}}
	opt.Observer = records
	var h hooks
	if cfg.HasGateway() {
		server, gateway, err := listen(cfg, opt.Agents)
		if err != nil {
			return e, err
		}
		defer server.Close()
		h.gateway = gateway
	}
	err = withCheckpoint(ctx, cfg, opt, useEvaluate, h, func(ctx context.Context, g *checkpointGroup) error {
		e = Evaluation{Checkpoint: g.stepDir, Samples: cfg.Eval.Samples, Dir: g.options.Dir}
		return g.forEachWorker(ctx, func(w *worker.Worker, ctx context.Context) error {
			answers, err := w.Evaluate(ctx, g.step)
			if err != nil {
				return err
			}
			if w.Main() {
				e.Answers = answers
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
			return w.Member().Checkpoints.Trim(ctx, g.step)
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
