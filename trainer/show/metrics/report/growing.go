package report

import (
	"io"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// Growing is a run that is still in progress, with its records so far.
type Growing struct {
	Agents  []string       // main agent first; the order determines the colours
	Records []metrics.Line // valid records, as metrics.History returns them
}

// Write writes the sections of the report that depend only on these records, as HTML without a frame: figures, curves,
// learning, costs and tools. They need Style and ChartScript.
func (g Growing) Write(w io.Writer) error {
	r := &run{agents: g.Agents, main: g.Agents[0], records: g.Records}
	return pageTemplate.ExecuteTemplate(w, "growing", r.sections())
}
