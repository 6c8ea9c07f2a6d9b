// Package live shows a run while it goes on, on a page of each worker's HTTP server:
//
//	GET /live          the page
//	GET /live/events   its content, as server-sent events
//
// The workers publish their records and what they do through the store, and every page reads the store: so each shows the
// whole team. What goes through the store are statistics and the texts of conversations, never a token.
package live

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/health"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// Path of the page; its events are at Path + "/events".
const Path = "/live"

// every is the time between two looks at the store, and patience bounds how long a request to it may take.
const (
	every    = time.Second
	patience = 5 * time.Second
)

// Options of a Page.
type Options struct {
	Run    string
	Agents []string           // all agents of the run, the main agent first
	Steps  int64              // that the run is to make
	Token  string             // the page is shown to who has it; "": to everybody on this machine
	Before []metrics.Line     // what the run had reported when this process started, as far as it knows
	Warn   func(metrics.Note) // is told that something cannot be published; nil: nobody is
}

// Page is the page of one process. It is a metrics.Observer, and gets its workers from Joined. It reads the store only
// while somebody looks at it.
type Page struct {
	opts   Options
	keeper keeper
	board  board // is used by the goroutine of keepShowing alone

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	wake   chan struct{} // asks for a look at the store at once

	mu      sync.Mutex
	places  map[string]place // of this process's agents
	doing   map[string]doing
	unread  []metrics.Line // reported here, and not yet read back from the store
	warned  map[string]bool
	viewers int
	shown   []section
	changed chan struct{} // is closed when shown is replaced
}

// New starts a page, which Close ends.
func New(o Options) *Page {
	o.Agents = slices.Clone(o.Agents)
	p := &Page{opts: o, keeper: newKeeper(o.Token), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		places: map[string]place{}, doing: map[string]doing{}, warned: map[string]bool{}}
	p.board = newBoard(o)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.work.Go(p.keepShowing)
	return p
}

// Mount puts the page on a server.
func (p *Page) Mount(s *health.Server) {
	s.Handle(Path, p.keeper.guard(p.index))
	s.Handle(Path+"/events", p.keeper.guard(p.events))
}

// Close ends the page and its streams.
func (p *Page) Close() {
	p.cancel()
	p.work.Wait()
}

// keepShowing looks at the store every second while somebody looks at the page.
func (p *Page) keepShowing() {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		case <-p.wake:
		}
		p.mu.Lock()
		watched := p.viewers > 0
		p.mu.Unlock()
		if watched {
			p.show(p.look())
		}
	}
}

// soon asks for a look at the store before the next second is over.
func (p *Page) soon() {
	select {
	case p.wake <- struct{}{}:
	default: // it is asked for already
	}
}

// show replaces what the viewers see, where it differs.
func (p *Page) show(sections []section) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(sections, p.shown) {
		p.shown = sections
		close(p.changed)
		p.changed = make(chan struct{})
	}
}
