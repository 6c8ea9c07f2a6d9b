package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// shownRollouts is the number of rollouts on the page, side by side.
const shownRollouts = 4

// runState is the page's copy of the run's state, as read from the store so far.
type runState struct {
	opt     Options
	problem string // reason why there is nothing newer

	status     *store.Status
	activities map[string]activity // by agent
	records    metrics.History
	last       string // id of the newest record read from the store
	damaged    int    // number of unreadable records

	phase    string
	rollouts []rollout
	shown    string // identifies the finished rollouts in rollouts

	reported string // identifies the records that report shows
	report   string // sections of the report, HTML
}

// rollout is a finished rollout with its question.
type rollout struct {
	store.FinishedRollout
	Question, Wanted string // "": unknown here
}

// sections reads the store, through the place of any agent of this process, and returns the page's sections.
func (p *Page) sections() []section {
	r := &p.state
	ctx, cancel := context.WithTimeout(p.ctx, requestTimeout)
	defer cancel()
	r.problem = ""
	if w, ok := p.anyWorker(); !ok {
		r.problem = "No agent of this process has a place in the run now: it is starting, waits for its place, or has ended."
	} else if err := errors.Join(r.readTeam(ctx, w), p.readRecords(ctx, w), r.readRollouts(ctx, w)); err != nil {
		r.problem = "The store: " + err.Error()
	}
	p.mu.Lock()
	unread := slices.Clone(p.unread) // records that were not read back from the store yet
	p.mu.Unlock()
	return []section{r.section("team", r.team(unread)), r.section("rollouts", r.newest()), newSection("report", r.reportOf(unread))}
}

func (p *Page) anyWorker() (worker, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.workers {
		if w.Context().Err() == nil {
			return w, true
		}
	}
	return worker{}, false
}

// readTeam reads which workers are present and their activities.
func (r *runState) readTeam(ctx context.Context, w worker) error {
	status, err := w.Display.Status(ctx)
	if err != nil {
		return err
	}
	texts, err := w.Display.Activities(ctx)
	if err != nil {
		return err
	}
	r.status, r.activities = status, map[string]activity{}
	for agent, text := range texts {
		var a activity
		if err := json.Unmarshal(text, &a); err != nil {
			return fmt.Errorf("the activity of %s cannot be read: %w", agent, err)
		}
		r.activities[agent] = a
	}
	return nil
}

// readRecords reads new records from the store, including the page's own.
func (p *Page) readRecords(ctx context.Context, w worker) error {
	records, last, err := w.Display.Records(ctx, p.state.last)
	if err != nil {
		return err
	}
	p.state.last = last
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range records {
		l, err := metrics.ParseLine(r.JSON)
		if err != nil || l.Kind == metrics.KindNote {
			p.state.damaged++
			continue
		}
		l.Agent = r.Agent
		p.state.records.Add(l)
		p.unread = slices.DeleteFunc(p.unread, func(own metrics.Line) bool {
			return own.Agent == l.Agent && own.Kind == l.Kind && own.Step == l.Step && own.Time.Equal(l.Time)
		})
	}
	return nil
}

// readRollouts reads the newest finished rollouts, if they have changed.
func (r *runState) readRollouts(ctx context.Context, w worker) error {
	phase, ids, err := w.Display.NewestOutcomes(ctx, shownRollouts)
	name := fmt.Sprint(phase, ids)
	// The list is empty while a checkpoint is made; the previous rollouts then remain on the page.
	if err != nil || len(ids) == 0 || name == r.shown {
		return err
	}
	finished, err := w.Display.FinishedRollouts(ctx, phase, ids)
	if err != nil || len(finished) == 0 {
		return err
	}
	r.phase, r.rollouts, r.shown = phase.String(), nil, name
	for _, f := range finished {
		text, wanted := w.Question(f.Query)
		r.rollouts = append(r.rollouts, rollout{f, text, wanted})
	}
	return nil
}
