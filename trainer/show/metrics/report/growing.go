package report

import (
	"io"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// Growing is a run that goes on, by what it has reported so far.
type Growing struct {
	Agents  []string       // the main agent first; their order gives them their colours
	Records []metrics.Line // valid ones, as metrics.History gives them
}

// Write writes the sections of the report that these records decide, as HTML without a frame: figures, curves, learning,
// costs and tools. Style and ChartScript belong to it.
func (g Growing) Write(w io.Writer) error {
	r := &run{agents: g.Agents, main: g.Agents[0], records: g.Records}
	return pageTemplate.ExecuteTemplate(w, "growing", r.sections())
}
