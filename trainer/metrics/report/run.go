package report

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// run is what the folders say, trajectories excepted.
type run struct {
	dirs     []string
	name     string
	config   string            // config.yaml, "" if there is none
	settings map[string]string // of config.yaml, by key; nil: not known
	steps    int64             // configured; 0: not known
	main     string            // the main agent's name; "" if nothing says it
	team     []string          // agents of the configuration, main first; nil: not known
	agents   []string          // that left something here, in that order
	records  []metrics.Line
	notes    []metrics.Line
	missing  []string // what a reader would look for in vain, as sentences
}

// newRun puts the parts of a run together.
func newRun(parts []*part) (*run, error) {
	r := &run{name: filepath.Base(filepath.Clean(parts[0].dir))}
	if abs, err := filepath.Abs(parts[0].dir); err == nil {
		r.name = filepath.Base(abs)
	}
	for _, p := range parts {
		r.dirs = append(r.dirs, p.dir)
		r.addMetrics(p)
	}
	r.configure(parts)
	if err := r.nameAgents(); err != nil {
		return nil, err
	}
	if len(r.agents) == 0 {
		return nil, fmt.Errorf("%s has neither %s nor trajectories of any agent: it is not the folder of a run, such as runs/NAME", r.dirs[0], metrics.FileName)
	}
	r.lookForGaps()
	return r, nil
}

func (r *run) lacks(format string, args ...any) {
	r.missing = append(r.missing, fmt.Sprintf(format, args...))
}

func (r *run) addMetrics(p *part) {
	if !p.measured {
		r.lacks("%s has no %s: no curves of what it ran.", filepath.Base(p.dir), metrics.FileName)
	}
	if p.log.Damaged > 0 {
		r.lacks("%d lines of %s are damaged and left out.", p.log.Damaged, metrics.FileName)
	}
	r.records = append(r.records, p.log.Records...)
	r.notes = append(r.notes, p.log.Notes...)
}

// configure takes the first configuration that there is.
func (r *run) configure(parts []*part) {
	i := slices.IndexFunc(parts, func(p *part) bool { return p.text != "" })
	if i < 0 {
		r.lacks("There is no config.yaml: the number of steps that was configured is not known.")
		return
	}
	r.config = credentials.ReplaceAllString(parts[i].text, "://…@")
	cfg := parts[i].config
	if cfg == nil {
		r.lacks("config.yaml is not a configuration that this version reads: the number of steps and the main agent are guessed.")
		return
	}
	r.name, r.steps, r.main, r.settings = cfg.Run.Name, cfg.Run.Steps, cfg.Main().Name, cfg.Shared()
	r.team = append(r.team, r.main)
	for _, sub := range cfg.Subs() {
		r.team = append(r.team, sub.Name)
	}
}

const maxAgents = 64

// nameAgents lists the agents in the order of the configuration; those that it does not name follow by name.
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
	order := r.team
	if order == nil {
		order = []string{r.main}
	}
	place := func(name string) int {
		if i := slices.Index(order, name); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortFunc(r.agents, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
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
	for _, name := range r.team {
		if !slices.Contains(r.agents, name) {
			r.lacks("Nothing of %s is here. If it ran elsewhere, give its folder too to see its side.", name)
		}
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
			out = append(out, point{x: float64(l.Step), y: y})
		}
	}
	slices.SortStableFunc(out, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	return out
}

// accuracies are the held-out accuracies of an agent by step, with their standard deviation over the samples.
func (r *run) accuracies(agent string) []point {
	out := r.series(metrics.KindEval, agent, "accuracy")
	for _, spread := range r.series(metrics.KindEval, agent, "accuracy_std") {
		if i := slices.IndexFunc(out, func(p point) bool { return p.x == spread.x }); i >= 0 {
			out[i].spread = spread.y
		}
	}
	return out
}
