package track

import (
	"cmp"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// rowOf names the numbers of a record: AGENT/NAME for a step, AGENT/KIND/NAME for other kinds, and AGENT/NAME/TOOL for
// counts by tool.
func rowOf(l metrics.Line) Row {
	prefix := named(cmp.Or(l.Agent, "team")) + "/"
	if l.Kind != metrics.KindStep {
		prefix += l.Kind + "/"
	}
	r := Row{Step: l.Step, Time: l.Time, Values: map[string]float64{}, Histograms: map[string]map[string]int64{}}
	for name, v := range l.Values {
		r.Values[prefix+named(name)] = v
	}
	for name, counts := range l.Counts {
		if !byTool(name) {
			r.Histograms[prefix+named(name)] = counts
			continue
		}
		for tool, n := range counts {
			r.Values[prefix+name+"/"+named(tool)] += float64(n)
		}
	}
	return r
}

func byTool(name string) bool {
	return slices.ContainsFunc(metrics.ByTool.Values, func(v metrics.Value) bool { return v.Name == name })
}

const maxName = 64

// named returns a part of a name that every tracker accepts. The tools of MCP servers may have any names.
func named(part string) string {
	part = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("_-.", r):
			return r
		}
		return '_'
	}, part)
	if strings.Trim(part, ".") == "" { // MLflow reads names as paths
		part = strings.Repeat("_", len(part)+1)
	}
	return part[:min(len(part), maxName)]
}
