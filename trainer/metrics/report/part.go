package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// part is one folder: a run, or what those of its agents left that ran on one server.
type part struct {
	dir      string
	log      metrics.Log
	measured bool           // there is a metrics.jsonl
	text     string         // config.yaml, "" if there is none
	config   *config.Config // nil: none that this version reads
}

// maxConfigBytes bounds what is shown of a configuration.
const maxConfigBytes = 256 << 10

// credentials in a URL, which have no place in a file that is passed around.
var credentials = regexp.MustCompile(`://[^\s"'/@]*@`)

func readPart(dir string) (*part, error) {
	info, err := os.Stat(dir)
	const wanted = "give the folder of a run, run.dir of its configuration, in which metrics.jsonl and trajectories/ are"
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no folder %s: %s", dir, wanted)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder: %s", dir, wanted)
	}
	p := &part{dir: dir}
	switch p.log, err = metrics.Read(dir); {
	case err == nil:
		p.measured = true
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	path := filepath.Join(dir, "config.yaml")
	if text, err := os.ReadFile(path); err == nil && len(text) <= maxConfigBytes {
		p.text = string(text)
		if cfg, err := config.Parse(path, text, nil); err == nil {
			p.config = cfg
		}
	}
	return p, nil
}

// ofOneRun says whether two folders hold parts of one run: its name and what of its configuration never changes are
// those of both, as far as they are known, all agents are of its team, and no agent began in both. One that did made two
// runs.
func (p *part) ofOneRun(q *part) bool {
	if a, b := p.config, q.config; a != nil && b != nil && (a.Run.Name != b.Run.Name || a.Digest() != b.Digest()) {
		return false
	}
	if !p.hasTeamOf(q) || !q.hasTeamOf(p) {
		return false
	}
	began := q.beginnings()
	for agent, where := range p.beginnings() {
		if there, both := began[agent]; both && there == where {
			return false
		}
	}
	return true
}

// hasTeamOf says whether the agents that reported in q are of p's team, if that is known.
func (p *part) hasTeamOf(q *part) bool {
	if p.config == nil {
		return true
	}
	for agent := range q.beginnings() {
		if agent != "" && p.config.Agent(agent) == nil {
			return false
		}
	}
	return true
}

// beginning is what an agent reported first.
type beginning struct {
	kind string
	step int64
}

func (p *part) beginnings() map[string]beginning {
	out := map[string]beginning{}
	for _, l := range p.log.Records {
		if _, known := out[l.Agent]; !known {
			out[l.Agent] = beginning{l.Kind, l.Step}
		}
	}
	return out
}

// runsOf puts parts of one run together, in the order in which they are given.
func runsOf(parts []*part) [][]*part {
	var runs [][]*part
next:
	for _, p := range parts {
	run:
		for i, run := range runs {
			for _, q := range run {
				if !p.ofOneRun(q) {
					continue run
				}
			}
			runs[i] = append(run, p)
			continue next
		}
		runs = append(runs, []*part{p})
	}
	return runs
}
