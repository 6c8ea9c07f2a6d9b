package report

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
	"github.com/mgrpo/mgrpo/trainer/show/report/browsertest"
)

// another copies the fixture as a run with another name, other settings and other accuracies.
func another(t *testing.T) string {
	t.Helper()
	dir := copyRun(t)
	edit(t, filepath.Join(dir, "config.yaml"), func(s string) string {
		return strings.NewReplacer("name: fixture", "name: slower", "lr: 0.0005", "lr: 0.0001").Replace(s)
	})
	edit(t, filepath.Join(dir, "metrics.jsonl"), func(s string) string {
		return regexp.MustCompile(`"accuracy":[0-9.]+`).ReplaceAllString(s, `"accuracy":0.5`)
	})
	return dir
}

// TestComparison: the page shows two runs next to each other, with their differences.
func TestComparison(t *testing.T) {
	address := saved(t, render(t, Options{}, fixture, another(t)))
	dom := browsertest.Open(t, address).HTML()
	for _, want := range []string{"<h1>fixture · slower</h1>", "2 runs compared", `<i class="swatch c0"></i>fixture`, `<i class="swatch c1"></i>slower`} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	numbers := between(dom, `<section id="numbers">`, "</section>")
	if row := regexp.MustCompile(`<td>held-out accuracy before step 1</td><td>0\.219 ± 0\.044</td><td>0\.500 ± 0\.044 \(\+0\.281\)</td>`); !row.MatchString(numbers) {
		t.Errorf("no row of the first accuracies in %s", numbers)
	}
	settings := between(dom, `<section id="settings">`, "</section>")
	if got := strings.Count(settings, "<tr>"); got != 3 || !strings.Contains(settings, "<td>agents.planner.optimizer.lr</td><td>0.0005</td><td>0.0001</td>") {
		t.Errorf("%d rows, want a head and the learning rates of both agents: %s", got, settings)
	}
	planner := between(dom, `<h2>planner</h2>`, "</section>")
	for _, class := range []string{"line c0", "line c1", "spread c0", "dot c1"} {
		if !strings.Contains(planner, `class="`+class) {
			t.Errorf("no %q in the charts of planner", class)
		}
	}
	if strings.Contains(dom, "<h2>Trajectories</h2>") || !strings.Contains(dom, "<h2>researcher</h2>") {
		t.Error("trajectories are shown, or the researcher's charts are not")
	}
}

// TestComparisonDraws: a screenshot has the curves of both runs.
func TestComparisonDraws(t *testing.T) {
	counts := colours(screenshot(t, render(t, Options{}, fixture, another(t)), 2000, "light"))
	for i, colour := range [][3]uint8{{0x2f, 0x6b, 0xd8}, {0xd9, 0x66, 0x0a}} {
		if counts[colour] < 200 {
			t.Errorf("%d pixels in the colour of run %d, want its curves", counts[colour], i)
		}
	}
}

// ofSums changes the task of a configuration.
func ofSums(config string) string {
	return strings.NewReplacer("kind: research", "kind: gsm8k", `train: ""`, `train: train.jsonl`, `eval: ""`, `eval: test.jsonl`,
		"demonstrations: task", "demonstrations: none").Replace(config)
}

// TestNothingMeasured: a run that was stopped during its cold start is valid, but there is nothing to report yet.
func TestNothingMeasured(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, metrics.FileName), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open([]string{dir}); err == nil || !strings.Contains(err.Error(), dir+" does not contain a finished step or evaluation yet") {
		t.Error(err)
	}
}

// TestUnrelatedRuns: runs that have no agent in common are neither joined nor compared.
func TestUnrelatedRuns(t *testing.T) {
	strangers := t.TempDir()
	metricstest.Write(t, strangers, metricstest.Step("writer", 1, 1))
	sums := another(t)
	edit(t, filepath.Join(sums, "config.yaml"), ofSums)
	noTask, err := Open([]string{sums})
	if err != nil || noTask.runs[0].settings == nil {
		t.Fatalf("the other task's configuration cannot be read: %v", err)
	}
	for other, words := range map[string][]string{
		strangers: {"no agent in common", "planner, researcher", "writer"},
		sums:      {"different tasks", "research", "gsm8k"},
	} {
		_, err := Open([]string{fixture, other})
		for _, word := range append(words, fixture, other) {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%v: the error does not contain %q", err, word)
			}
		}
	}
	if _, err := Open(slices.Repeat([]string{fixture}, maxRuns+1)); err == nil || !strings.Contains(err.Error(), "at most 8") {
		t.Errorf("%d runs: %v", maxRuns+1, err)
	}
}

// TestPartsAndRepeats: folders with one configuration are one run if they divide its records by
// agent or by time. They are several runs if an agent began in each.
func TestPartsAndRepeats(t *testing.T) {
	whole, repeat := copyRun(t), copyRun(t)
	until, since := copyRun(t), copyRun(t) // a researcher that was lost after step 3, and the worker that replaced it
	keep(`"step":[0-3],`)(t, until)
	keep(`"agent":"researcher".*"step":[4-9]|"step":[4-9].*"agent":"researcher"`)(t, since)
	other := copyRun(t)
	edit(t, filepath.Join(other, "config.yaml"), func(s string) string { return strings.Replace(s, "seed: 0", "seed: 1", 1) })
	keep(`"agent":"researcher"`)(t, other)
	for _, c := range []struct {
		name string
		dirs []string
		runs int
	}{
		{"one", []string{whole}, 1},
		{"an agent that moved to another server", []string{until, since}, 1},
		{"the same run again", []string{whole, repeat}, 2},
		{"another seed", []string{until, other}, 2},
	} {
		r, err := Open(c.dirs)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if len(r.runs) != c.runs || r.Compares() != (c.runs > 1) {
			t.Errorf("%s: %d runs, want %d", c.name, len(r.runs), c.runs)
		}
	}
	if page := render(t, Options{}, whole, repeat); !strings.Contains(page, "fixture in "+whole) || !strings.Contains(page, `<p class="lead">None.</p>`) {
		t.Error("runs with one name are not distinguished by their folders, or their settings differ")
	}
}

// TestOrderOfAgents: the page lists agents in the order of the configuration.
func TestOrderOfAgents(t *testing.T) {
	dir := copyRun(t)
	edit(t, filepath.Join(dir, "config.yaml"), func(s string) string {
		aide := strings.Replace(regexp.MustCompile(`(?m)^  researcher:\n(    .*\n)+`).FindString(s), "researcher", "aide", 1)
		s = regexp.MustCompile(`(?m)^  researcher:\n(    .*\n)+`).ReplaceAllStringFunc(s, func(block string) string { return block + aide })
		return ofSums(strings.Replace(s, "delegates: [researcher]", "delegates: [researcher, aide]", 1))
	})
	edit(t, filepath.Join(dir, "metrics.jsonl"), func(s string) string {
		return strings.Join(regexp.MustCompile(`(?m)^.*"agent":"researcher".*\n`).FindAllString(s, -1), "") + s
	})
	edit(t, filepath.Join(dir, "metrics.jsonl"), func(s string) string { return strings.ReplaceAll(s, `"agent":"researcher"`, `"agent":"aide"`) + s })
	r, err := Open([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"planner", "researcher", "aide"}; !slices.Equal(r.runs[0].agents, want) || !slices.Equal(r.runs[0].team, want) {
		t.Errorf("agents %v of the team %v, want %v", r.runs[0].agents, r.runs[0].team, want)
	}
}

// TestTiles: tiles of an agent that was idle, and of a run that was not evaluated before training.
func TestTiles(t *testing.T) {
	for name, c := range map[string]struct {
		change func(string) string
		want   tile
	}{
		"as it was": {func(s string) string { return s }, tile{"Held-out accuracy", "0.22 → 0.47", "before step 1 → step 6"}},
		"idle":      {func(s string) string { return dropValue(s, "researcher", "reward_mean") }, tile{"Reward of researcher", "idle", "not called in 6 steps"}},
		"at times":  {func(s string) string { return dropValue(s, `researcher`, `reward_mean`, 2, 5) }, tile{"Reward of researcher", "", "step 1 → step 6; idle in 2"}},
		"not before": {func(s string) string {
			return regexp.MustCompile(`(?m)^.*"kind":"eval","step":0.*\n`).ReplaceAllString(s, "")
		}, tile{"Held-out accuracy", "0.31 → 0.47", "step 3 → step 6; none before"}},
		"one": {func(s string) string {
			return regexp.MustCompile(`(?m)^.*"kind":"eval","step":[03].*\n`).ReplaceAllString(s, "")
		},
			tile{"Held-out accuracy", "0.47", "after step 6, the only evaluation"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyRun(t)
			edit(t, filepath.Join(dir, "metrics.jsonl"), c.change)
			r, err := Open([]string{dir})
			if err != nil {
				t.Fatal(err)
			}
			got := tiles(r.runs[0])
			i := slices.IndexFunc(got, func(x tile) bool { return x.Label == c.want.Label })
			if i < 0 || got[i].Detail != c.want.Detail || c.want.Value != "" && got[i].Value != c.want.Value {
				t.Errorf("tiles %v, want %v", got, c.want)
			}
		})
	}
}

// dropValue removes a value from an agent's steps, or only from the given steps.
func dropValue(lines, agent, value string, steps ...int) string {
	return regexp.MustCompile(`(?m)^.*"kind":"step","step":([0-9]+),"agent":"`+agent+`".*$`).ReplaceAllStringFunc(lines, func(line string) string {
		step, _ := strconv.Atoi(between(line, `"step":`, ","))
		if steps != nil && !slices.Contains(steps, step) {
			return line
		}
		return regexp.MustCompile(`"`+value+`":[-0-9.e]+,`).ReplaceAllString(line, "")
	})
}

// TestSmooth: the mean over neighbours keeps straight lines and flattens peaks.
func TestSmooth(t *testing.T) {
	line := make([]point, 100)
	for i := range line {
		line[i] = point{x: float64(i), y: 3 * float64(i)}
	}
	for i, p := range smooth(line) {
		if d := p.y - line[i].y; p.x != line[i].x || d > 1e-9 || d < -1e-9 {
			t.Fatalf("a straight line at %d: %v", i, p)
		}
	}
	spike := make([]point, 100)
	spike[50].y = 11
	for i, p := range smooth(spike) {
		want := 0.0
		if i >= 45 && i <= 55 {
			want = 1
		}
		if p.y != want {
			t.Errorf("a spike at %d: %v, want %v", i, p.y, want)
		}
	}
}

// TestSmoothedCurves: curves of many steps are smoothed, and a thin line shows the steps.
// Curves of few steps and of evaluations are not smoothed.
func TestSmoothedCurves(t *testing.T) {
	few := render(t, Options{}, fixture)
	dir := t.TempDir()
	var records []metrics.Record
	for n := range int64(40) {
		records = append(records, metricstest.Step("a", n+1, float64(n%2)),
			metrics.Record{Kind: metrics.KindEval, Step: n + 1, Agent: "a", Values: map[string]float64{"accuracy": 0.5, "accuracy_std": 0.25}})
	}
	metricstest.Write(t, dir, records...)
	page := render(t, Options{}, dir)
	many := browsertest.Open(t, saved(t, page)).HTML()
	for class, want := range map[string]int{`class="line c0 raw"`: 1, `class="line c0 smooth"`: 1, `class="line c0"`: 1, `class="spread c0"`: 40, `id="smooth"`: 1} {
		if class == `class="line c0"` {
			class = `class="line c0" d=`
		}
		if got := strings.Count(many, class); got != want {
			t.Errorf("the page has %s %d times, want %d", class, got, want)
		}
	}
	// After a click only the lines of the steps are visible. The test removes the page's policy so that its own script can run.
	page = regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`).ReplaceAllString(page, "") +
		`<script>byId("smooth").click(); document.title = [".raw", ".smooth"].map((c) => getComputedStyle(document.querySelector(".line" + c)).display).join(" ")</script>`
	if title := between(browsertest.Open(t, saved(t, page)).HTML(), "<title>", "</title>"); title != "inline none" {
		t.Errorf("with smoothing off the lines are displayed as %q, want only the lines of the steps", title)
	}
	if strings.Contains(few, ` smooth"`) || strings.Contains(few, `id="smooth"`) || !strings.Contains(few, `class="spread c0"`) {
		t.Error("a run of 6 steps is smoothed, or its evaluations have no bars")
	}
}

// TestTools: calls of tools are added up, and there is a warning about a tool that fails often.
func TestTools(t *testing.T) {
	dir := t.TempDir()
	var records []metrics.Record
	for n := range int64(10) {
		r := metricstest.Step("a", n+1, 1)
		r.Counts = map[string]map[string]int64{
			metrics.ToolCalls: {"search": 5, "<b>code": 5, "rare": n % 2}, metrics.ToolErrors: {"search": 1, "rare": n % 2}, metrics.ToolFailures: {"search": n % 2}, metrics.ToolTimeouts: {"search": 1},
			metrics.ToolRefused: {"search": 2}, metrics.ToolRetries: {"search": 3},
			metrics.ToolMilliseconds: {"search": 600, "<b>code": 5},
		}
		records = append(records, r)
	}
	metricstest.Write(t, dir, records...)
	section := between(browsertest.Open(t, saved(t, render(t, Options{}, dir))).HTML(), `<section id="tools">`, "</section>")
	for _, want := range []string{
		"<td>a</td><td>search</td><td>50</td><td>10</td><td>5</td><td>10</td><td>20</td><td>30</td><td>66.7 %</td><td>200</td>",
		"<td>a</td><td>&lt;b&gt;code</td><td>50</td><td>0</td><td>0</td><td>0</td><td>0</td><td>0</td><td>0.0 %</td><td>1</td>",
		"search of a failed in 67 % of its 30 calls",
	} {
		if !strings.Contains(section, want) {
			t.Errorf("no %q in %s", want, section)
		}
	}
	if strings.Contains(section, "code of a") || strings.Contains(section, "rare of a") {
		t.Errorf("there is a warning about a tool that works or was hardly called: %s", section)
	}
	if strings.Contains(render(t, Options{}, fixture), `id="tools"`) {
		t.Error("a run without tools has a table of them")
	}
}

// TestBatchesAreExplained: the text explains the bars, and the effect if most conversations decode alone.
func TestBatchesAreExplained(t *testing.T) {
	if text := explainBatches(map[int64]int64{1: 82, 8: 18}); !strings.Contains(text, "2.3 on average") || !strings.Contains(text, "In 82 % of the passes") {
		t.Error(text)
	}
	if text := explainBatches(map[int64]int64{16: 100}); !strings.Contains(text, "16.0 on average") || strings.Contains(text, "alone") {
		t.Error(text)
	}
	if page := render(t, Options{}, fixture); !strings.Contains(page, "A bar counts the passes") {
		t.Error("the report does not explain its bars")
	}
}
