package report

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// run is what the folders say, trajectories excepted.
type run struct {
	dirs    []string
	name    string
	config  string // config.yaml, "" if there is none
	steps   int64  // configured; 0: not known
	main    string // the main agent's name; "" if nothing says it
	agents  []string
	records []metrics.Line
	notes   []metrics.Line
	missing []string // what a reader would look for in vain, as sentences
}

func load(dirs []string) (*run, error) {
	r := &run{dirs: dirs, name: filepath.Base(filepath.Clean(dirs[0]))}
	if abs, err := filepath.Abs(dirs[0]); err == nil {
		r.name = filepath.Base(abs)
	}
	for _, dir := range dirs {
		if err := r.readMetrics(dir); err != nil {
			return nil, err
		}
	}
	r.readConfig()
	if err := r.nameAgents(); err != nil {
		return nil, err
	}
	if len(r.agents) == 0 {
		return nil, fmt.Errorf("%s has neither %s nor trajectories of any agent: it is not the folder of a run", dirs[0], metrics.FileName)
	}
	r.lookForGaps()
	return r, nil
}

func (r *run) lacks(format string, args ...any) {
	r.missing = append(r.missing, fmt.Sprintf(format, args...))
}

func (r *run) readMetrics(dir string) error {
	log, err := metrics.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		r.lacks("%s has no %s: no curves of what it ran.", filepath.Base(dir), metrics.FileName)
		return nil
	}
	if err != nil {
		return err
	}
	if log.Damaged > 0 {
		r.lacks("%d lines of %s are damaged and left out.", log.Damaged, metrics.FileName)
	}
	r.records = append(r.records, log.Records...)
	r.notes = append(r.notes, log.Notes...)
	return nil
}

// maxConfigBytes bounds what is shown of a configuration.
const maxConfigBytes = 256 << 10

// credentials in a URL, which have no place in a file that is passed around.
var credentials = regexp.MustCompile(`://[^\s"'/@]*@`)

func (r *run) readConfig() {
	for _, dir := range r.dirs {
		path := filepath.Join(dir, "config.yaml")
		text, err := os.ReadFile(path)
		if err != nil || len(text) > maxConfigBytes {
			continue
		}
		r.config = credentials.ReplaceAllString(string(text), "://…@")
		cfg, err := config.Parse(path, text, nil)
		if err != nil {
			r.lacks("config.yaml is not a configuration that this version reads: the number of steps and the main agent are guessed.")
			return
		}
		r.name, r.steps, r.main = cfg.Run.Name, cfg.Run.Steps, cfg.Main().Name
		return
	}
	r.lacks("There is no config.yaml: the number of steps that was configured is not known.")
}

const maxAgents = 64

// nameAgents lists the agents, main first, then by name.
func (r *run) nameAgents() error {
	known := map[string]bool{}
	for _, l := range r.records {
		known[l.Agent] = true
		if _, ok := l.Values["accuracy"]; ok && r.main == "" {
			r.main = l.Agent
		}
	}
	files, err := r.trajectoryFiles()
	if err != nil {
		return err
	}
	for _, f := range files {
		known[f.agent] = true
	}
	delete(known, "")
	if len(known) > maxAgents {
		return fmt.Errorf("%d agents, more than %d: this is not a run", len(known), maxAgents)
	}
	for name := range known {
		r.agents = append(r.agents, name)
	}
	slices.Sort(r.agents)
	if i := slices.Index(r.agents, r.main); i > 0 {
		r.agents = slices.Insert(slices.Delete(r.agents, i, i+1), 0, r.main)
	}
	return nil
}

func (r *run) lookForGaps() {
	last, evaluations, steps := r.lastStep(), 0, 0
	for _, l := range r.records {
		if _, ok := l.Values["accuracy"]; ok && l.Kind == metrics.KindEval {
			evaluations++
		}
		if l.Kind == metrics.KindStep {
			steps++
		}
	}
	if len(r.records) > 0 && evaluations == 0 {
		r.lacks("There are no held-out evaluations.")
	}
	if len(r.records) > 0 && steps == 0 {
		r.lacks("No training step is finished.")
	}
	if r.steps > 0 && last < r.steps && steps > 0 {
		r.lacks("The run stopped, or stands, after step %d of %d.", last, r.steps)
	}
	if r.main != "" && !slices.Contains(r.agents, r.main) {
		r.lacks("The main agent %s ran elsewhere: give its folder too to see its side.", r.main)
	}
}

// lastStep is the last finished training step.
func (r *run) lastStep() int64 {
	last := int64(0)
	for _, l := range r.records {
		if l.Kind == metrics.KindStep {
			last = max(last, l.Step)
		}
	}
	return last
}

// series are the points of one value of one agent, by step.
func (r *run) series(kind, agent, name string) []point {
	return r.computed(kind, agent, func(v map[string]float64) (float64, bool) {
		y, ok := v[name]
		return y, ok
	})
}

// computed is series of what f makes of a record's values.
func (r *run) computed(kind, agent string, f func(map[string]float64) (float64, bool)) []point {
	var out []point
	for _, l := range r.records {
		if l.Kind != kind || l.Agent != agent {
			continue
		}
		if y, ok := f(l.Values); ok {
			out = append(out, point{float64(l.Step), y})
		}
	}
	slices.SortStableFunc(out, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	return out
}
