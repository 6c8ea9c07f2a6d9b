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

// runFolder is one folder: a whole run, or the files of the agents that ran on one server.
type runFolder struct {
	dir      string
	log      metrics.Log
	measured bool           // the folder has a metrics.jsonl
	text     string         // text of config.yaml; "": there is no such file
	config   *config.Config // nil: this version cannot read the configuration
}

// maxConfigBytes is the largest configuration that the report shows, in bytes.
const maxConfigBytes = 256 << 10

// credentials matches credentials in a URL. They are removed, because reports are shared.
var credentials = regexp.MustCompile(`://[^\s"'/@]*@`)

func readRunFolder(dir string) (*runFolder, error) {
	info, err := os.Stat(dir)
	const wanted = "give the folder of a run (run.dir in its configuration), which contains metrics.jsonl and trajectories/"
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the folder %s does not exist: %s", dir, wanted)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder: %s", dir, wanted)
	}
	p := &runFolder{dir: dir}
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

// ofOneRun reports whether two folders are parts of the same run. Their names and fixed
// settings must be equal, as far as they are known. All agents must belong to the same team. No
// agent may have started in both folders, since two starts of an agent are two runs.
func (p *runFolder) ofOneRun(q *runFolder) bool {
	if a, b := p.config, q.config; a != nil && b != nil && (a.Run.Name != b.Run.Name || a.Digest() != b.Digest()) {
		return false
	}
	if !p.hasTeamOf(q) || !q.hasTeamOf(p) {
		return false
	}
	began := q.firstRecords()
	for agent, where := range p.firstRecords() {
		if there, both := began[agent]; both && there == where {
			return false
		}
	}
	return true
}

// hasTeamOf reports whether the agents that reported in q belong to p's team. It returns true if p's team is unknown.
func (p *runFolder) hasTeamOf(q *runFolder) bool {
	if p.config == nil {
		return true
	}
	for agent := range q.firstRecords() {
		if agent != "" && p.config.Agent(agent) == nil {
			return false
		}
	}
	return true
}

// firstRecord is the first record of an agent.
type firstRecord struct {
	kind string
	step int64
}

func (p *runFolder) firstRecords() map[string]firstRecord {
	out := map[string]firstRecord{}
	for _, l := range p.log.Records {
		if _, known := out[l.Agent]; !known {
			out[l.Agent] = firstRecord{l.Kind, l.Step}
		}
	}
	return out
}

// runsOf groups the folders by run, in the given order.
func runsOf(folders []*runFolder) [][]*runFolder {
	var runs [][]*runFolder
next:
	for _, p := range folders {
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
		runs = append(runs, []*runFolder{p})
	}
	return runs
}
