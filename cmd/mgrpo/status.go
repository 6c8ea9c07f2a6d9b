package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/show/dashboard"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

type statusCmd struct {
	requiredConfig
	JSON bool `name:"json" help:"Print one JSON object, which has more fields."`
}

func (statusCmd) Help() string {
	return `Shows which agents have a worker, when the worker's lease ends, the version of each agent, and the workers or events
that the run waits for. Reads the store and changes nothing in it.`
}

// statusPatience bounds the time for the store's reply.
const statusPatience = 15 * time.Second

func (c *statusCmd) Run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if cfg.Store.URL == "" {
		return embeddedStoreError(cfg)
	}
	options, err := assemble.StoreOptions(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	s, err := store.ReadStatus(ctx, options)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(struct {
			*store.Status
			WaitsFor []string `json:"waits_for"`
		}{s, s.WaitsFor()})
	}
	return printStatus(os.Stdout, s)
}

// embeddedStoreError returns the error for a run whose store only its own process can reach: it names other sources.
func embeddedStoreError(cfg *config.Config) error {
	page := "the page that mgrpo train shows with --listen 127.0.0.1:9464"
	if _, port, _ := net.SplitHostPort(cfg.Health.Address); port != "" && port != "0" {
		page = fmt.Sprintf("http://%s%s", health.Local(cfg.Health.Address), dashboard.Path)
	}
	return fmt.Errorf("store.url is not set: the store of this run is inside the process of mgrpo train, where no other process can read it; "+
		"during the training, look at %s; at any time, mgrpo report %s makes a page of the run's files", page, shellWord(cfg.RunDir()))
}

// Limits of a printed status.
const (
	statusWidth = 79 // columns of a line
	statusAgent = 24 // columns of an agent's name
	statusCalls = 5  // calls listed for an agent
)

// printStatus writes a status for people.
func printStatus(w io.Writer, s *store.Status) error {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s, round %d\n\n", s.Run, s.Round)
	fmt.Fprintf(&b, "%-*s  %-22s %6s %8s %5s %7s\n", statusAgent, "agent", "worker", "epoch", "version", "lag", "claimed")
	for _, a := range s.Agents {
		version := "-"
		if a.Version != nil {
			version = fmt.Sprint(*a.Version)
		}
		fmt.Fprintf(&b, "%-*s  %-22s %6d %8s %5d %7d\n", statusAgent, shorten(a.Agent, statusAgent), workerText(a), a.Epoch, version, a.Lag, a.ClaimedCount)
	}
	for _, a := range s.Agents {
		if a.Missing() {
			wrap(&b, "\n", fmt.Sprintf("%s: no heartbeat for %s; in %s its worker counts as dead", a.Agent, seconds(a.Silent), seconds(a.LeaseLeft)))
		}
	}
	if s.Stop != nil {
		wrap(&b, "\n", fmt.Sprintf("the round was stopped by %s (%s): %s", s.Stop.Agent, s.Stop.Kind, s.Stop.Reason))
	}
	if s.Asked != "" {
		wrap(&b, "\n", fmt.Sprintf("asked to stop by %s: the run ends before its next phase, with a checkpoint", s.Asked))
	}
	waits := s.WaitsFor()
	if len(waits) == 0 && s.Stop == nil {
		waits = []string{"nothing; it is between two phases, or complete"}
	}
	for i, line := range waits {
		if i == 0 {
			b.WriteString("\nwaits for\n")
		}
		wrap(&b, "  ", line)
	}
	printCalls(&b, s)
	_, err := io.WriteString(w, b.String())
	return err
}

// printCalls lists the oldest invocations that workers are playing.
func printCalls(b *strings.Builder, s *store.Status) {
	for _, a := range s.Agents {
		for i, c := range a.Claimed[:min(len(a.Claimed), statusCalls)] {
			if i == 0 {
				wrap(b, "\n", fmt.Sprintf("%s works on, oldest first", a.Agent))
			}
			wrap(b, "  ", fmt.Sprintf("%s %s: %s old, delivery %d", c.Phase, c.ID, seconds(c.Age), c.Delivery))
		}
	}
}

// workerText describes whether an agent's worker is alive, and the rest of its lease.
func workerText(a store.AgentStatus) string {
	switch {
	case a.Missing():
		return fmt.Sprintf("silent, lease %s", seconds(a.LeaseLeft))
	case a.Alive:
		return fmt.Sprintf("alive, lease %s", seconds(a.LeaseLeft))
	case a.Finished:
		return "finished"
	}
	return "none"
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// shorten cuts text to a number of columns.
func shorten(s string, columns int) string {
	if utf8.RuneCountInString(s) <= columns {
		return s
	}
	return string([]rune(s)[:columns-1]) + "…"
}

// wrap writes text from other processes in lines of statusWidth. Newlines in indent come before the first line only, and the
// spaces in it before each line. Control characters are left out, because they could control a terminal.
func wrap(b *strings.Builder, indent, text string) {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	start := strings.TrimLeft(indent, "\n")
	b.WriteString(indent)
	room := statusWidth - len(start)
	column := 0
	for _, word := range strings.Fields(text) {
		for column > 0 && column+1+utf8.RuneCountInString(word) > room {
			b.WriteString("\n" + start)
			column = 0
		}
		if column > 0 {
			b.WriteByte(' ')
			column++
		}
		for runes := []rune(word); len(runes) > 0; {
			part := runes[:min(len(runes), room-column)]
			runes = runes[len(part):]
			b.WriteString(string(part))
			column += len(part)
			if len(runes) > 0 {
				b.WriteString("\n" + start)
				column = 0
			}
		}
	}
	b.WriteByte('\n')
}
