package track

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
)

// runDir returns the folder of a run that has its configuration and no records.
func runDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("../../../../examples/quickstart/team.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func step(agent string, n int64, reward float64) metrics.Record {
	return metrics.Record{Kind: metrics.KindStep, Step: n, Agent: agent, Values: map[string]float64{"reward_mean": reward}}
}

func evaluation(n int64, accuracy float64) metrics.Record {
	return metrics.Record{Kind: metrics.KindEval, Step: n, Agent: "planner", Values: map[string]float64{"accuracy": accuracy}}
}

// report appends records to metrics.jsonl as a run does.
func report(t *testing.T, dir string, records ...metrics.Record) {
	t.Helper()
	j := metrics.NewJSONL(dir)
	for _, r := range records {
		j.Report(r)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// ends appends the note that the run is complete.
func ends(t *testing.T, dir string) {
	t.Helper()
	j := metrics.NewJSONL(dir)
	j.Note(metrics.Infof("", metrics.TopicEnd, "the run is complete"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, metrics.FileName), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// notebook is a tracker that keeps the rows it receives.
type notebook struct {
	run      Run
	rows     []Row
	closed   int
	complete bool
	err      error
}

func (n *notebook) open(_ context.Context, run Run) (Tracker, error) {
	n.run = run
	return n, nil
}

func (n *notebook) Log(_ context.Context, rows []Row) error {
	n.rows = append(n.rows, rows...)
	return n.err
}

func (n *notebook) Close(_ context.Context, complete bool) error {
	n.closed++
	n.complete = complete
	return nil
}

// text returns the rows, one per line.
func (n *notebook) text() string {
	var b strings.Builder
	for _, r := range n.rows {
		fmt.Fprintf(&b, "%d: %d", r.Index, r.Step)
		for _, name := range slices.Sorted(maps.Keys(r.Values)) {
			fmt.Fprintf(&b, " %s=%g", name, r.Values[name])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func forward(t *testing.T, dir string) (*notebook, Sum) {
	t.Helper()
	to := &notebook{}
	sum, err := Forward(t.Context(), dir, false, to.open)
	if err != nil {
		t.Fatal(err)
	}
	if to.closed != 1 {
		t.Errorf("closed %d times", to.closed)
	}
	return to, sum
}

func TestForward(t *testing.T) {
	dir := runDir(t)
	before := time.Now()
	report(t, dir,
		metrics.Record{Kind: metrics.KindColdStart, Agent: "planner", Values: map[string]float64{"loss": 2}},
		evaluation(0, .25), step("planner", 1, .5),
		metrics.Record{Kind: metrics.KindStep, Step: 1, Agent: "researcher", Values: map[string]float64{"lr": 1e-3},
			Counts: map[string]map[string]int64{"calls": {"2": 3}, metrics.ToolCalls: {"search": 7}}})
	to, sum := forward(t, dir)
	const want = `0: 0 planner/cold_start/loss=2
1: 0 planner/eval/accuracy=0.25
2: 1 planner/reward_mean=0.5
3: 1 researcher/lr=0.001 researcher/tool_calls/search=7
`
	if got := to.text(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if h := to.rows[3].Histograms; len(h) != 1 || h["researcher/calls"]["2"] != 3 {
		t.Errorf("histograms %v", h)
	}
	if at := to.rows[0].Time; at.Before(before) || !at.Equal(to.run.Began) {
		t.Errorf("the first row has the time %v, the run began at %v", at, to.run.Began)
	}
	if sum != (Sum{Rows: 4}) || to.complete {
		t.Errorf("%+v, complete %v", sum, to.complete)
	}
	if p := to.run.Params; to.run.Name != "quickstart" || p["grpo.rollouts"] != "8" || p["agents"] != "" || p["agents.planner.role"] != "main" {
		t.Errorf("run %q with %v", to.run.Name, p)
	}
	ends(t, dir)
	if to, sum := forward(t, dir); !to.complete || !sum.Complete {
		t.Error("the run is complete, but Close was called as if it were not")
	}
	report(t, dir, step("planner", 2, .5)) // run.steps was increased
	if to, _ := forward(t, dir); to.complete {
		t.Error("a prolonged run was closed as complete")
	}
}

// TestGoingBack: steps that are made again are forwarded only once, so every row keeps its number.
func TestGoingBack(t *testing.T) {
	dir := runDir(t)
	report(t, dir, evaluation(0, .1), step("planner", 1, .1), step("planner", 2, .2), evaluation(2, .2), step("researcher", 1, .9))
	first, _ := forward(t, dir)
	report(t, dir, step("planner", 2, .7), evaluation(2, .7), step("researcher", 2, .3), step("planner", 3, .3))
	again, sum := forward(t, dir)
	if !strings.HasPrefix(again.text(), first.text()) {
		t.Errorf("earlier rows changed:\n%s%s", first.text(), again.text())
	}
	const rest = "5: 2 researcher/reward_mean=0.3\n6: 3 planner/reward_mean=0.3\n"
	if got := strings.TrimPrefix(again.text(), first.text()); got != rest || sum.Repeated != 2 {
		t.Errorf("then\n%swant\n%sand 2 repeated: %+v", got, rest, sum)
	}
	if first.run.ID != again.run.ID || len(first.run.ID) != 16 {
		t.Errorf("ids %q and %q", first.run.ID, again.run.ID)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if to, _ := forward(t, moved); to.run.ID != first.run.ID {
		t.Error("the id of a run changed when its folder was moved")
	}
	other := runDir(t)
	report(t, other, evaluation(0, .1))
	if to, _ := forward(t, other); to.run.ID == first.run.ID {
		t.Error("two runs with one name have the same id")
	}
}

// TestDamage: lines that cannot be read are skipped, and a last line without an end is not read yet.
func TestDamage(t *testing.T) {
	dir := runDir(t)
	report(t, dir, step("planner", 1, .1))
	write(t, dir, "{\"kind\":\"step\"\n\n[]\n{\"kind\":\"party\",\"step\":3}\n")
	report(t, dir, step("planner", 2, .2))
	write(t, dir, `{"kind":"step","step":3,"agent":"planner","values":{"reward`)
	to, sum := forward(t, dir)
	if len(to.rows) != 2 || sum.Damaged != 3 {
		t.Errorf("%+v\n%s", sum, to.text())
	}
	write(t, dir, "_mean\":1}}\n")
	if to, _ := forward(t, dir); len(to.rows) != 3 {
		t.Errorf("after the end of the line was written:\n%s", to.text())
	}
}

func TestNothingToForward(t *testing.T) {
	for name, c := range map[string]struct {
		dir  func() string
		want string
	}{
		"no folder":    {func() string { return filepath.Join(t.TempDir(), "none") }, "give the folder of a run"},
		"no record":    {func() string { d := runDir(t); ends(t, d); return d }, "does not contain a finished step"},
		"no config":    {func() string { d := t.TempDir(); report(t, d, step("a", 1, 1)); return d }, "config.yaml"},
		"no metrics":   {func() string { d := runDir(t); write(t, d, strings.Repeat("x", maxLine+2)); return d }, "not a file of metrics"},
		"not a folder": {func() string { return "track_test.go" }, metrics.FileName},
	} {
		if _, err := Forward(t.Context(), c.dir(), false, (&notebook{}).open); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestFollow waits for a run that has not begun, and follows it until it is complete.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := runDir(t)
		to, done := &notebook{}, make(chan error, 1)
		go func() {
			_, err := Forward(t.Context(), dir, true, to.open)
			done <- err
		}()
		seen := func(want int) {
			t.Helper()
			time.Sleep(2 * pause)
			synctest.Wait()
			if len(to.rows) != want {
				t.Errorf("%d rows, want %d:\n%s", len(to.rows), want, to.text())
			}
		}
		seen(0)
		const many = 2*chunk + 1
		var text strings.Builder
		for n := range many {
			fmt.Fprintf(&text, `{"kind":"step","step":%d,"agent":"planner","values":{"x":1}}`+"\n", n+1)
		}
		write(t, dir, text.String()[:40])
		seen(0)
		write(t, dir, text.String()[40:])
		seen(many)
		report(t, dir, step("researcher", 1, 1))
		seen(many + 1)
		ends(t, dir)
		if err := <-done; err != nil || !to.complete {
			t.Errorf("%v, complete %v", err, to.complete)
		}
	})
}

// TestFollowEndsOnSignal: after a signal, all existing records are forwarded and there is no error.
func TestFollowEndsOnSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := runDir(t)
		report(t, dir, step("planner", 1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		to, done := &notebook{}, make(chan error, 1)
		go func() {
			_, err := Forward(ctx, dir, true, to.open)
			done <- err
		}()
		time.Sleep(pause / 2)
		cancel()
		if err := <-done; err != nil || len(to.rows) != 1 || to.complete || to.closed != 1 {
			t.Errorf("%v, %+v", err, to)
		}
	})
}

// TestReplaced: if the file is replaced while it is followed, Forward returns an error, because row numbers would change their meaning.
func TestReplaced(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 10) },
		"renamed": func(path string) error { return os.Rename(path, path+".old") },
	} {
		synctest.Test(t, func(t *testing.T) {
			dir := runDir(t)
			report(t, dir, step("planner", 1, 1))
			done := make(chan error, 1)
			go func() {
				_, err := Forward(t.Context(), dir, true, (&notebook{}).open)
				done <- err
			}()
			time.Sleep(pause / 2)
			if err := replace(filepath.Join(dir, metrics.FileName)); err != nil {
				t.Fatal(err)
			}
			report(t, dir)
			if name == "renamed" {
				report(t, dir, step("planner", 1, 1))
			}
			if err := <-done; err == nil || !strings.Contains(err.Error(), "was replaced") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestFailure: if the tracker fails, Forward ends with an error and does not mark the run as complete.
func TestFailure(t *testing.T) {
	dir := runDir(t)
	report(t, dir, step("planner", 1, 1))
	ends(t, dir)
	to := &notebook{err: errors.New("gone")}
	if _, err := Forward(t.Context(), dir, true, to.open); !errors.Is(err, to.err) || to.closed != 1 || to.complete {
		t.Errorf("%v, %+v", err, to)
	}
	refuses := func(context.Context, Run) (Tracker, error) { return nil, to.err }
	if _, err := Forward(t.Context(), dir, true, refuses); !errors.Is(err, to.err) {
		t.Errorf("%v", err)
	}
}

// TestNames: names are changed so that trackers accept all of their characters.
func TestNames(t *testing.T) {
	l := metrics.Line{Record: metrics.Record{Kind: metrics.KindStep, Step: 1, Values: map[string]float64{"a b": 1},
		Counts: map[string]map[string]int64{metrics.ToolErrors: {"../x": 1, "..": 2, "": 3, "né\x00": 4, "files.read-all": 5, strings.Repeat("y", 300): 6}}}}
	want := map[string]float64{"team/a_b": 1, "team/tool_errors/.._x": 1, "team/tool_errors/___": 2, "team/tool_errors/_": 3,
		"team/tool_errors/n__": 4, "team/tool_errors/files.read-all": 5, "team/tool_errors/" + strings.Repeat("y", maxName): 6}
	if got := rowOf(l).Values; !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func FuzzRow(f *testing.F) {
	f.Add(`{"kind":"step","step":1,"agent":"a","values":{"x":1},"counts":{"calls":{"1":2},"tool_calls":{"t":1}}}`)
	f.Add(`{"kind":"eval","step":-9223372036854775808,"counts":{"calls":{"-9223372036854775808":1,"9223372036854775807":1}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		tail := &tail{newest: map[series]int64{}}
		r, ok := tail.row([]byte(text))
		for name := range r.Values {
			if len(name) > 250 || strings.Contains(name, "//") || strings.Contains("/"+name+"/", "/../") {
				t.Errorf("name %q", name)
			}
		}
		if ok {
			sent(r)
		}
	})
}
