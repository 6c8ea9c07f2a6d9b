package dashboard

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/metrics/report"
)

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
	}{p.opts.Run, template.CSS(style), template.JS(script)}
	_ = templates.Execute(w, data) // the viewer may have disconnected
}

// draw draws the sections of the page. unread holds records that were not read back from the store yet.
func (b *runState) draw(unread []metrics.Line) []section {
	return []section{b.section("team", b.team(unread)), b.section("rollouts", b.newest()), newSection("report", b.reportOf(unread))}
}

func (b *runState) section(name string, data any) section {
	var out bytes.Buffer
	if err := templates.ExecuteTemplate(&out, name, data); err != nil {
		return newSection(name, template.HTMLEscapeString(err.Error()))
	}
	return newSection(name, out.String())
}

// all returns the records of the run so far.
func (b *runState) all(unread []metrics.Line) []metrics.Line {
	if len(unread) == 0 {
		return b.records.Lines()
	}
	var all metrics.History
	lines := slices.Concat(b.records.Lines(), unread)
	// An older record must not override a newer one.
	slices.SortStableFunc(lines, func(x, y metrics.Line) int { return x.Time.Compare(y.Time) })
	for _, l := range lines {
		all.Add(l)
	}
	return all.Lines()
}
