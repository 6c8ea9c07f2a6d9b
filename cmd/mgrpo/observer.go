package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/doctor"
	"github.com/mgrpo/mgrpo/trainer/show/dashboard"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/metrics/track"
)

// train runs a training and reports it to the terminal and to the run's files.
func train(ctx context.Context, cfg *config.Config, opt trainer.Options) error {
	plan, err := doctor.Preflight(cfg, opt.Agents)
	if err != nil {
		fmt.Print(plan)
		return err
	}
	opt.BeforeLoad = sync.OnceFunc(func() { fmt.Print(plan) }) // after mistakes in the configuration, which are then the first lines
	dir := cfg.RunDir()
	console := newConsole(os.Stdout, cfg, opt.Agents)
	var before metrics.Log
	if opt.Resume {
		before = recall(console, dir)
	}
	lines, events := metrics.NewJSONL(dir), metrics.NewTensorBoard(dir)
	observers := metrics.Observers{console, lines, events}
	server, err := serveHealth(cfg, opt.Agents)
	if err != nil {
		return err
	}
	if server != nil {
		defer server.Close()
		if opt.Dashboard, err = showLive(cfg, before, observers); err != nil {
			return err
		}
		defer opt.Dashboard.Close()
		opt.Dashboard.Mount(server)
		console.Note(metrics.Infof("", metrics.TopicHealth, "health and metrics: %s", addresses(server, "")))
		console.Note(metrics.Infof("", metrics.TopicHealth, "the page of the run: %s", addresses(server, dashboard.Path)))
		observers = append(observers, server, opt.Dashboard)
		if opt.Gateway, err = mountGateway(cfg, server); err != nil {
			return err
		}
	}
	opt.Observer, opt.Health = observers, server
	ctx, stop, done := untilStopped(ctx)
	defer done()
	opt.Stop = stop
	trackers, err := track.Follow(ctx, cfg, func(format string, args ...any) {
		observers.Note(metrics.Infof("", metrics.TopicTracking, format, args...))
	})
	if err != nil {
		return err
	}
	err = trainer.Train(ctx, cfg, opt)
	if errors.Is(err, trainer.ErrNothingTrained) { // the terminal shows it as the error of the command
		lines.Note(metrics.Warnf("", metrics.TopicStop, "%v", err))
	}
	if err == nil || errors.Is(err, trainer.ErrFinished) || errors.Is(err, trainer.ErrNothingTrained) {
		lines.Note(metrics.Infof("", metrics.TopicEnd, "the run is complete")) // mgrpo track --follow ends with it
	}
	if errors.Is(err, trainer.ErrFinished) { // resuming a complete run is not a failure
		console.Note(metrics.Infof("", metrics.TopicStart, "%v", err))
		err = nil
	}
	err = errors.Join(err, lines.Close(), events.Close())
	trackers.Finish()
	console.Summary(err)
	return err
}

// showLive makes the page of a run. before holds the run's records so far.
func showLive(cfg *config.Config, before metrics.Log, notes metrics.Observer) (*dashboard.Page, error) {
	token, err := healthToken(cfg)
	if err != nil {
		return nil, err
	}
	return dashboard.New(dashboard.Options{Run: cfg.Run.Name, Agents: cfg.AgentNames(), Steps: cfg.Run.Steps, Token: token, Before: before.Records, Warn: notes.Note}), nil
}

// recall gives the console the records that a resumed run wrote before.
func recall(console *metrics.Console, dir string) metrics.Log {
	before, err := metrics.Read(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // training does not depend on the old records
		console.Note(metrics.Warnf("", metrics.TopicFiles, "the summary covers the steps from here on only: %v", err))
		return metrics.Log{}
	}
	console.Recall(before)
	return before
}

// newConsole returns a console that writes to a file, such as standard output. agents are those that run here; nil
// means all.
func newConsole(file *os.File, cfg *config.Config, agents []string) *metrics.Console {
	opt := metrics.ConsoleOptions{Agents: agents, Steps: cfg.Run.Steps}
	if agents == nil {
		opt.Agents = cfg.AgentNames()
	}
	out := int(file.Fd())
	if term.IsTerminal(out) && os.Getenv("TERM") != "dumb" {
		opt.Terminal = true
		opt.Color = os.Getenv("NO_COLOR") == ""
		opt.Width, _, _ = term.GetSize(out)
	}
	return metrics.NewConsole(file, opt)
}
