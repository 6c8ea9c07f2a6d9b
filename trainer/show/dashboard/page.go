// Package dashboard shows a running training on a page of each worker's HTTP server:
//
//	GET /live          the page
//	GET /live/events   its content, as server-sent events
//
// The workers publish their records and activities through the store, and every page reads the store, so each page
// shows the whole team. Only statistics, tasks, answers and outcomes pass through the store, never
// tokens.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/show/report"
)

// Path is the path of the page. Its events are at Path + "/events".
const Path = "/live"

// readInterval is the time between two reads of the store, and requestTimeout bounds the time of a request to it.
const (
	readInterval   = time.Second
	requestTimeout = 5 * time.Second
)

// Options are the options of a Page.
type Options struct {
	Run    string
	Agents []string           // all agents of the run, the main agent first
	Steps  int64              // number of steps of the run
	Token  string             // required to see the page; "": anyone on this machine may see it
	Before []metrics.Line     // the run's records from before this process started, as far as they are known
	Warn   func(metrics.Note) // receives a note if something cannot be published; may be nil
}

// Page is the page of one process. It is a metrics.Observer; Joined adds workers. It reads the store only while it has
// viewers.
type Page struct {
	opt    Options
	access access
	state  runState // used by the goroutine of keepShowing only

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	wake   chan struct{} // asks for an immediate read of the store

	mu      sync.Mutex
	workers map[string]worker // of this process's agents
	now     map[string]activityNow
	unread  []metrics.Line // reported here, and not yet read back from the store
	warned  map[string]bool
	viewers int
	latest  []section
	changed chan struct{} // closed when latest is replaced
}

// New starts a page, which Close ends.
func New(o Options) *Page {
	o.Agents = slices.Clone(o.Agents)
	p := &Page{opt: o, access: newAccess(o.Token), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		workers: map[string]worker{}, now: map[string]activityNow{}, warned: map[string]bool{}}
	p.state.opt = o
	for _, l := range o.Before {
		p.state.records.Add(l)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.work.Go(p.keepShowing)
	return p
}

// Mount adds the page to a server.
func (p *Page) Mount(s *health.Server) {
	s.Handle(Path, p.access.guard(p.index))
	s.Handle(Path+"/events", p.access.guard(p.events))
}

// Close ends the page and its streams.
func (p *Page) Close() {
	p.cancel()
	p.work.Wait()
}

// keepShowing reads the store every second while the page has viewers.
func (p *Page) keepShowing() {
	tick := time.NewTicker(readInterval)
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
			p.show(p.sections())
		}
	}
}

// requestRead asks for a read of the store within the current second.
func (p *Page) requestRead() {
	select {
	case p.wake <- struct{}{}:
	default: // already requested
	}
}

// show replaces the changed sections and informs the viewers.
func (p *Page) show(sections []section) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(sections, p.latest) {
		p.latest = sections
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

//go:embed page.html
var pageText string

//go:embed live.css
var styleText string

//go:embed live.js
var scriptText string

// The page's script and style, and the policy that allows these only, and no other source.
var (
	script = report.ChartScript + scriptText
	style  = report.Style + styleText
	policy = fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "+
		"frame-ancestors 'none'",
		source(script), source(style))
	templates = template.Must(template.New("page").Funcs(template.FuncMap{"clip": clip}).Parse(pageText))
)

// source names an inline script or style in a Content-Security-Policy.
func source(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// index writes the page's frame, which the events fill.
func (p *Page) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policy)
	data := struct {
		Run    string
		Style  template.CSS
		Script template.JS
	}{p.opt.Run, template.CSS(style), template.JS(script)}
	_ = templates.Execute(w, data) // the viewer may have disconnected
}

func (r *runState) section(name string, data any) section {
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, name, data); err != nil {
		return newSection(name, template.HTMLEscapeString(err.Error()))
	}
	return newSection(name, out.String())
}

// allRecords returns the records of the run so far.
func (r *runState) allRecords(unread []metrics.Line) []metrics.Line {
	if len(unread) == 0 {
		return r.records.Lines()
	}
	var all metrics.History
	lines := slices.Concat(r.records.Lines(), unread)
	// An older record must not override a newer one.
	slices.SortStableFunc(lines, func(x, y metrics.Line) int { return x.Time.Compare(y.Time) })
	for _, l := range lines {
		all.Add(l)
	}
	return all.Lines()
}
