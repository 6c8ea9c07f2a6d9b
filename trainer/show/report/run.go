package report

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// run holds the content of a run's folders, without trajectories.
type run struct {
	dirs     []string
	name     string
	config   string            // text of config.yaml; "": there is no such file
	settings map[string]string // values of config.yaml by key; nil: unknown
	steps    int64             // configured steps; 0: unknown
	main     string            // the main agent's name; "" if unknown
	team     []string          // agents in the configuration, main agent first; nil: unknown
	agents   []string          // agents that have files here, in the order of team
	records  []metrics.Line
	notes    []metrics.Line
	missing  []string // sentences about missing data
}

// newRun joins the folders of a run.
func newRun(folders []*runFolder) (*run, error) {
	r := &run{name: filepath.Base(filepath.Clean(folders[0].dir))}
	if abs, err := filepath.Abs(folders[0].dir); err == nil {
		r.name = filepath.Base(abs)
	}
	for _, p := range folders {
		r.dirs = append(r.dirs, p.dir)
		if !p.measured {
			r.lacks("%s does not contain %s: there are no curves for its agents.", filepath.Base(p.dir), metrics.FileName)
		}
		if p.log.Damaged > 0 {
			r.lacks("%d damaged lines of %s were skipped.", p.log.Damaged, metrics.FileName)
		}
		r.records, r.notes = append(r.records, p.log.Records...), append(r.notes, p.log.Notes...)
	}
	for _, lines := range [][]metrics.Line{r.records, r.notes} {
		slices.SortStableFunc(lines, func(a, b metrics.Line) int { return a.Time.Compare(b.Time) })
	}
	r.configure(folders)
	if err := r.nameAgents(); err != nil {
		return nil, err
	}
	if len(r.agents) == 0 && folders[0].measured {
		return nil, fmt.Errorf("%s does not contain a finished step or evaluation yet: there is nothing to report", r.dirs[0])
	}
	if len(r.agents) == 0 {
		return nil, fmt.Errorf("%s contains neither %s nor trajectories of an agent: give the folder of a run, such as runs/NAME", r.dirs[0], metrics.FileName)
	}
	r.lookForGaps()
	return r, nil
}

func (r *run) lacks(format string, args ...any) {
	r.missing = append(r.missing, fmt.Sprintf(format, args...))
}

// configure uses the first folder that has a configuration.
func (r *run) configure(folders []*runFolder) {
	i := slices.IndexFunc(folders, func(p *runFolder) bool { return p.text != "" })
	if i < 0 {
		r.lacks("There is no config.yaml: the configured number of steps is unknown.")
		return
	}
	r.config = credentials.ReplaceAllString(folders[i].text, "://…@")
	cfg := folders[i].config
	if cfg == nil {
		r.lacks("This version cannot read config.yaml: the number of steps and the main agent are guesses.")
		return
	}
	r.name, r.steps, r.main, r.settings = cfg.Run.Name, cfg.Run.Steps, cfg.Main().Name, cfg.Shared()
	r.team = append(r.team, r.main)
	for _, sub := range cfg.Subs() {
		r.team = append(r.team, sub.Name)
	}
}

const maxAgents = 64

// nameAgents lists the agents in the order of the configuration, then the other agents by name.
func (r *run) nameAgents() error {
	known := map[string]bool{}
	for _, l := range r.records {
		known[l.Agent] = true
		if _, ok := l.Values[metrics.Accuracy]; ok && r.main == "" {
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
		return fmt.Errorf("%d agents, more than %d: the folder is not a run's", len(known), maxAgents)
	}
	order := r.team
	if order == nil {
		order = []string{r.main}
	}
	for _, name := range append(slices.Clone(order), slices.Sorted(maps.Keys(known))...) {
		if known[name] {
			r.agents = append(r.agents, name)
			delete(known, name)
		}
	}
	return nil
}

func (r *run) lookForGaps() {
	last, evaluations, steps := r.lastStep(), 0, 0
	for _, l := range r.records {
		if _, ok := l.Values[metrics.Accuracy]; ok && l.Kind == metrics.KindEval {
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
		r.lacks("The run has stopped, or is still running, after step %d of %d.", last, r.steps)
	}
	for _, name := range r.team {
		if !slices.Contains(r.agents, name) {
			r.lacks("There are no files of %s. If it ran on another server, give its folder too.", name)
		}
	}
}

// lastStep returns the last finished training step.
func (r *run) lastStep() int64 {
	last := int64(0)
	for _, l := range r.records {
		if l.Kind == metrics.KindStep {
			last = max(last, l.Step)
		}
	}
	return last
}

// series returns the points of an agent's value, by step.
func (r *run) series(kind, agent, name string) []point {
	return r.computed(kind, agent, func(v map[string]float64) (float64, bool) {
		y, ok := v[name]
		return y, ok
	})
}

// computed returns the points of f's result for each record's values, by step.
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

// comparableOf returns the main agent's accuracies in the evaluations that can be compared with the last evaluation.
func comparableOf(r *run) []point {
	var steps []float64
	for _, l := range metrics.Evaluations(r.records) {
		steps = append(steps, float64(l.Step))
	}
	return slices.DeleteFunc(r.accuracies(r.main), func(p point) bool { return !slices.Contains(steps, p.x) })
}

// lastUnknown reports whether the last evaluation has no accuracy.
func lastUnknown(r *run) bool {
	all := metrics.Evaluations(r.records)
	return len(all) > 0 && all[len(all)-1].Unknown != ""
}

// accuracies returns an agent's held-out accuracies by step, with their standard deviation over the samples.
func (r *run) accuracies(agent string) []point {
	out := r.series(metrics.KindEval, agent, metrics.Accuracy)
	for _, spread := range r.series(metrics.KindEval, agent, metrics.AccuracyStd) {
		if i := slices.IndexFunc(out, func(p point) bool { return p.x == spread.x }); i >= 0 {
			out[i].spread = spread.y
		}
	}
	return out
}
