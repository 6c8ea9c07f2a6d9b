package trainer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/run/doctor"
	"github.com/mgrpo/mgrpo/trainer/show/console"
	"github.com/mgrpo/mgrpo/trainer/show/dashboard"
	"github.com/mgrpo/mgrpo/trainer/show/track"
)

// TrainAndReport trains like Train, and reports the run as `mgrpo train` does:
//   - out gets the memory that the agents will need, progress, a table of each step, and a summary. If it is a terminal, the
//     progress line is redrawn in place. The error is not nil if the memory of a device or the space on the disk is too small.
//   - The run's folder gets metrics.jsonl.
//   - A server has the run's health, metrics, live page and gateway. Its address is gateway.listen or health.address. Without
//     either it has a free port of 127.0.0.1, and starts only if there is a gateway or opt.Agents is set.
//   - Experiment trackers of the configuration get the records.
//
// opt.Observer, which may be nil, receives the same records and notes. If the run was complete before, out gets a note, and the
// error is nil. Unlike `mgrpo train`, TrainAndReport does not handle signals.
func TrainAndReport(ctx context.Context, cfg *config.Config, opt TrainOptions, out io.Writer) error {
	terminal := console.New(out, cfg, opt.Agents)
	plan, err := doctor.Preflight(cfg, opt.Agents, opt.Task)
	if err != nil {
		terminal.Print(plan)
		return err
	}
	var before metrics.Log
	if opt.Resume {
		before = showEarlierRecords(terminal, cfg.RunDir())
	}
	lines := metrics.NewJSONL(cfg.RunDir())
	observers := metrics.Observers{terminal, lines, observed(opt.Observer)}
	h := hooks{beforeLoad: sync.OnceFunc(func() { terminal.Print(plan) })} // after all checks, so that an error is the first line
	if h.server, h.gateway, err = listen(cfg, opt.Agents); err != nil {
		return err
	}
	if server := h.server; server != nil {
		defer server.Close()
		if h.page, err = newDashboard(cfg, before, observers); err != nil {
			return err
		}
		defer h.page.Close()
		h.page.Mount(server)
		terminal.Note(metrics.Infof("", metrics.TopicHealth, "health and metrics: %s", server.URLs("")))
		terminal.Note(metrics.Infof("", metrics.TopicHealth, "the page of the run: %s", server.URLs(dashboard.Path)))
		observers = append(observers, server, h.page)
	}
	opt.Observer = observers
	trackers, err := track.Follow(ctx, cfg, func(format string, args ...any) {
		observers.Note(metrics.Infof("", metrics.TopicTracking, format, args...))
	})
	if err != nil {
		return err
	}
	err = train(ctx, cfg, opt, h)
	if errors.Is(err, ErrNothingTrained) { // the caller shows it as an error
		lines.Note(metrics.Warnf("", metrics.TopicStop, "%v", err))
	}
	if err == nil || errors.Is(err, ErrRunComplete) || errors.Is(err, ErrNothingTrained) {
		lines.Note(metrics.Infof("", metrics.TopicEnd, "the run is complete")) // mgrpo track --follow ends with it
	}
	if errors.Is(err, ErrRunComplete) { // resuming a complete run is not a failure
		terminal.Note(metrics.Infof("", metrics.TopicStart, "%v", err))
		err = nil
	}
	err = errors.Join(err, lines.Close())
	trackers.Finish()
	terminal.Summary(err)
	return err
}

// newDashboard makes the page of a run. before holds the run's records so far.
func newDashboard(cfg *config.Config, before metrics.Log, notes metrics.Observer) (*dashboard.Page, error) {
	token, err := secret.FromEnv("config: health.token_env", cfg.Health.TokenEnv)
	if err != nil {
		return nil, err
	}
	return dashboard.New(dashboard.Options{Run: cfg.Run.Name, Agents: cfg.AgentNames(), Steps: cfg.Run.Steps, Token: token, Before: before.Records,
		Warn: notes.Note}), nil
}

// showEarlierRecords gives the console the records that a resumed run wrote before.
func showEarlierRecords(terminal *console.Console, dir string) metrics.Log {
	before, err := metrics.Read(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // training does not depend on the old records
		terminal.Note(metrics.Warnf("", metrics.TopicFiles, "the summary covers the steps from here on only: %v", err))
		return metrics.Log{}
	}
	terminal.Recall(before)
	return before
}
