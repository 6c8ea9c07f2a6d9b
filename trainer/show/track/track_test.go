package track

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
)

// runDir returns the folder of a run that has its configuration and no records.
func runDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("../../../examples/quickstart/team.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// threeRecords returns the folder of a run with three records.
func threeRecords(t *testing.T) string {
	t.Helper()
	dir := runDir(t)
	r := metricstest.Step("planner", 1, .5)
	r.Counts = map[string]map[string]int64{"calls": {"1": 4, "3": 2}}
	metricstest.Write(t, dir, r, metricstest.Step("planner", 2, .5), metricstest.Step("planner", 3, .5))
	return dir
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

// standIn makes Python import the packages that replace wandb and mlflow, with a behaviour. calls returns the calls that they have recorded
// so far.
func standIn(t *testing.T, behaviour string) (calls func() [][]any) {
	t.Helper()
	folder, err := filepath.Abs("testdata/standin")
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("PYTHONPATH", folder)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	t.Setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1/")
	t.Setenv("STAND_IN", behaviour)
	t.Setenv("STAND_IN_LOG", log)
	return func() (out [][]any) {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var call []any
			if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &call) == nil {
				out = append(out, call)
			}
		}
		return out
	}
}

// rows returns the rows that the stand-in for W&B received, one a line.
func rows(calls [][]any) string {
	var b strings.Builder
	for _, c := range calls {
		if c[0] != "log" {
			continue
		}
		values := c[2].(map[string]any)
		fmt.Fprintf(&b, "%v: %v", c[1], values["step"])
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if strings.Contains(name, "/") {
				fmt.Fprintf(&b, " %s=%v", name, values[name])
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

var wandb = Tracker{"wandb", "agents", "python3"}

// forward forwards a run to the stand-in for W&B, and returns its calls.
func forward(t *testing.T, dir string) ([][]any, Sum) {
	t.Helper()
	calls := standIn(t, "{}")
	sum, err := Forward(t.Context(), dir, false, wandb)
	if err != nil {
		t.Fatal(err)
	}
	if all := calls(); all[len(all)-1][0] != "finish" {
		t.Errorf("the last call is %v", all[len(all)-1])
	}
	return calls(), sum
}

// id returns the ID of the run in the calls.
func id(calls [][]any) string { return calls[0][2].(map[string]any)["WANDB_RUN_ID"].(string) }

func TestForward(t *testing.T) {
	dir := runDir(t)
	metricstest.Write(t, dir,
		metrics.Record{Kind: metrics.KindColdStart, Agent: "planner", Values: map[string]float64{"loss": 2}},
		metricstest.Evaluation(0, .25), metricstest.Step("planner", 1, .5),
		metrics.Record{Kind: metrics.KindStep, Step: 1, Agent: "researcher", Values: map[string]float64{"lr": 1e-3},
			Counts: map[string]map[string]int64{"calls": {"2": 3}, "turns": nil, metrics.ToolCalls: {"search": 7}}})
	calls, sum := forward(t, dir)
	const want = `0: 0 planner/cold_start/loss=2
1: 0 planner/eval/accuracy=0.25
2: 1 planner/reward_mean=0.5
3: 1 researcher/calls=[[3] [1.5 2.5]] researcher/lr=0.001 researcher/tool_calls/search=7
`
	if got := rows(calls); got != want || sum != (Sum{Rows: 4}) {
		t.Errorf("got\n%swant\n%s%+v", got, want, sum)
	}
}

// TestStableIDs: a file always gives the same rows and the same ID, so that forwarding can continue later.
func TestStableIDs(t *testing.T) {
	dir := runDir(t)
	write(t, dir, `{"time":"2026-03-01T10:00:00.123456789Z","kind":"step","step":1,"agent":"planner","values":{"lr":1e-06,"n":7},"counts":{"calls":{"0":1,"512":2,"+100":4,"x":9}}}
{"time":"2026-03-01T12:00:01+02:00","kind":"eval","step":1,"values":{"accuracy":1}}
`)
	calls, _ := forward(t, dir)
	first, second := calls[3][2].(map[string]any), calls[4][2].(map[string]any)
	if first["_timestamp"] != 1772359200.123456 || second["_timestamp"] != 1772359201. || second["team/eval/accuracy"] != 1. {
		t.Errorf("got %v and %v", first, second)
	}
	bins := first["planner/calls"].([]any)
	counts, edges := bins[0].([]any), bins[1].([]any)
	if len(counts) != 257 || counts[0] != 1. || counts[50] != 4. || counts[256] != 2. || len(edges) != 258 || edges[0] != -.5 || edges[257] != 513.5 {
		t.Errorf("%d bins %v, edges %v", len(counts), counts, edges)
	}
	if id(calls) != "bb037c5f866e40ab" {
		t.Errorf("the ID is %s", id(calls))
	}
}

// TestGoingBack: steps that are made again are forwarded only once, so every row keeps its number.
func TestGoingBack(t *testing.T) {
	dir := runDir(t)
	metricstest.Write(t, dir, metricstest.Evaluation(0, .1), metricstest.Step("planner", 1, .1), metricstest.Step("planner", 2, .2), metricstest.Evaluation(2, .2), metricstest.Step("researcher", 1, .9))
	first, _ := forward(t, dir)
	metricstest.Write(t, dir, metricstest.Step("planner", 2, .7), metricstest.Evaluation(2, .7), metricstest.Step("researcher", 2, .3), metricstest.Step("planner", 3, .3))
	again, sum := forward(t, dir)
	const rest = "5: 2 researcher/reward_mean=0.3\n6: 3 planner/reward_mean=0.3\n"
	if got := rows(again); got != rows(first)+rest || sum.Repeated != 2 {
		t.Errorf("first\n%sthen\n%s%+v, want 2 repeated", rows(first), got, sum)
	}
	if id(first) != id(again) || len(id(first)) != 16 {
		t.Errorf("ids %q and %q", id(first), id(again))
	}
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if calls, _ := forward(t, moved); id(calls) != id(first) {
		t.Error("the id of a run changed when its folder was moved")
	}
	other := runDir(t)
	metricstest.Write(t, other, metricstest.Evaluation(0, .1))
	if calls, _ := forward(t, other); id(calls) == id(first) {
		t.Error("two runs with one name have the same id")
	}
}

// TestDamage: lines that cannot be read are skipped, and a last line without an end is not read yet.
func TestDamage(t *testing.T) {
	dir := runDir(t)
	metricstest.Write(t, dir, metricstest.Step("planner", 1, .1))
	damaged := []string{`{"kind":"step"`, `[]`, `null`, `7`, `{"kind":"party","step":3}`, `{"kind":["step"],"step":3}`, `{"kind":"step","step":1.5}`,
		`{"kind":"step","step":9223372036854775808}`, `{"kind":"step","step":3,"agent":7}`, `{"kind":"step","step":3,"agent":["planner"]}`,
		`{"kind":"step","step":3,"values":{"x":"1"}}`, `{"kind":"step","step":3,"values":{"x":true}}`, `{"kind":"step","step":3,"values":{"x":1e999}}`,
		`{"kind":"step","step":3,"values":{"x":NaN}}`, `{"kind":"step","step":3,"values":[1]}`, `{"kind":"step","step":3,"counts":{"calls":{"1":0.5}}}`,
		`{"kind":"step","step":3,"counts":{"calls":[1]}}`, `{"kind":"step","step":3,"time":"yesterday"}`, `{"kind":"step","step":3,"time":7}`,
		"\xff", strings.Repeat("[", 100_000)}
	write(t, dir, strings.Join(damaged, "\n")+"\n\n \n")
	metricstest.Write(t, dir, metricstest.Step("planner", 2, .2))
	write(t, dir, `{"kind":"step","step":3,"agent":"planner","values":{"reward`)
	calls, sum := forward(t, dir)
	if want := (Sum{Rows: 2, Damaged: int64(len(damaged))}); sum != want {
		t.Errorf("%+v, want %+v\n%s", sum, want, rows(calls))
	}
	write(t, dir, "_mean\":1}}\n")
	if calls, sum := forward(t, dir); sum.Rows != 3 {
		t.Errorf("after the end of the line was written:\n%s", rows(calls))
	}
}

func TestNothingToForward(t *testing.T) {
	for name, c := range map[string]struct {
		dir  func() string
		want string
	}{
		"no folder":    {func() string { return filepath.Join(t.TempDir(), "none") }, "give the folder of a run"},
		"no record":    {func() string { d := runDir(t); ends(t, d); return d }, "does not contain a finished step"},
		"no config":    {func() string { d := t.TempDir(); metricstest.Write(t, d, metricstest.Step("a", 1, 1)); return d }, "config.yaml"},
		"no metrics":   {func() string { d := runDir(t); write(t, d, strings.Repeat("x", 4<<20+2)); return d }, "not a file of metrics"},
		"not a folder": {func() string { return "track_test.go" }, metrics.FileName},
	} {
		if _, err := Forward(t.Context(), c.dir(), false, wandb); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestAwaitFirstRecord: the wait for a run's first record continues while there is only a part of a line. It ends with the record,
// or with until.
func TestAwaitFirstRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, records := range []int{0, 1} {
			dir := runDir(t)
			until, end := context.WithCancel(t.Context())
			ended := make(chan bool, 1)
			go func() {
				began, err := awaitFirstRecord(until, dir)
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
				ended <- began
			}()
			for _, text := range []string{"", `{"kind":"step","step":1,"agent":"planner",`} {
				write(t, dir, text)
				time.Sleep(2 * pollInterval)
				if synctest.Wait(); len(ended) > 0 {
					t.Fatalf("the wait ended with the text %q", text)
				}
			}
			if records > 0 {
				write(t, dir, `"values":{"x":1}}`+"\n")
			} else {
				end()
			}
			if began := <-ended; began != (records > 0) {
				t.Errorf("%d records: began is %v", records, began)
			}
			end()
		}
	})
}

// following forwards a run to the stand-in for W&B while it is written. received waits until the stand-in has a number of rows.
func following(ctx context.Context, t *testing.T, dir string) (received func(want int), done <-chan error) {
	t.Helper()
	calls, end := standIn(t, "{}"), make(chan error, 1)
	go func() {
		_, err := Forward(ctx, dir, true, wandb)
		end <- err
	}()
	return func(want int) {
		t.Helper()
		for strings.Count(rows(calls()), "\n") < want { // go test's time-out limits this loop
			time.Sleep(10 * time.Millisecond)
		}
		if got := rows(calls()); strings.Count(got, "\n") != want {
			t.Errorf("want %d rows:\n%s", want, got)
		}
	}, end
}

// TestFollow waits for a run that has not begun, and follows it until it is complete.
func TestFollow(t *testing.T) {
	dir := runDir(t)
	received, done := following(t.Context(), t, dir)
	const many = 2001
	var text strings.Builder
	for n := range many {
		fmt.Fprintf(&text, `{"kind":"step","step":%d,"agent":"planner","values":{"x":1}}`+"\n", n+1)
	}
	write(t, dir, text.String()[:len(text.String())-10])
	received(many - 1)
	write(t, dir, text.String()[len(text.String())-10:])
	received(many)
	metricstest.Write(t, dir, metricstest.Step("researcher", 1, 1))
	received(many + 1)
	ends(t, dir)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestFollowEndsOnSignal: after a signal, all existing records are forwarded and there is no error.
func TestFollowEndsOnSignal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := runDir(t)
	metricstest.Write(t, dir, metricstest.Step("planner", 1, 1))
	received, done := following(ctx, t, dir)
	received(1)
	metricstest.Write(t, dir, metricstest.Step("planner", 2, 1))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	received(2)
}

// TestFollowWithoutRun: a signal ends the wait for a run that has not begun, without an error.
func TestFollowWithoutRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for _, dir := range []string{runDir(t), filepath.Join(t.TempDir(), "none")} {
		if sum, err := Forward(ctx, dir, true, wandb); err != nil || sum != (Sum{}) {
			t.Errorf("%+v, %v", sum, err)
		}
	}
}

// TestReplaced: if the file is replaced while it is followed, Forward returns an error, because row numbers would change their meaning.
func TestReplaced(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 10) },
		"renamed": func(path string) error { return os.Rename(path, path+".old") },
	} {
		dir := runDir(t)
		metricstest.Write(t, dir, metricstest.Step("planner", 1, 1))
		received, done := following(t.Context(), t, dir)
		received(1)
		if err := replace(filepath.Join(dir, metrics.FileName)); err != nil {
			t.Fatal(err)
		}
		if name == "renamed" {
			metricstest.Write(t, dir, metricstest.Step("planner", 1, 1))
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), "was replaced") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLongLine: a line that is written while the run is followed has a limit, too.
func TestLongLine(t *testing.T) {
	dir := runDir(t)
	metricstest.Write(t, dir, metricstest.Step("planner", 1, 1))
	received, done := following(t.Context(), t, dir)
	received(1)
	write(t, dir, strings.Repeat("x", 4<<20+2))
	if err := <-done; err == nil || !strings.Contains(err.Error(), "wandb: "+dir) || !strings.Contains(err.Error(), "not a file of metrics") {
		t.Error(err)
	}
}

// TestNames: names are changed so that trackers accept all of their characters.
func TestNames(t *testing.T) {
	dir := runDir(t)
	metricstest.Write(t, dir, metrics.Record{Kind: metrics.KindStep, Step: 1, Values: map[string]float64{"a b": 1},
		Counts: map[string]map[string]int64{metrics.ToolErrors: {"../x": 1, "..": 2, "": 3, "né\x00": 4, "files.read-all": 5, strings.Repeat("y", 300): 6, "né\x01": 7}}})
	calls, _ := forward(t, dir)
	want := "0: 1 team/a_b=1 team/tool_errors/.._x=1 team/tool_errors/_=3 team/tool_errors/___=2 team/tool_errors/files.read-all=5 team/tool_errors/n__=11 " +
		"team/tool_errors/" + strings.Repeat("y", 64) + "=6\n"
	if got := rows(calls); got != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestBinned(t *testing.T) {
	histograms := map[string]struct {
		counts map[string]int64
		bins   int
		sum    float64
	}{
		"none":    {map[string]int64{"x": 3, "1_0": 2, " 1": 1, "9223372036854775808": 1}, 0, 0},
		"one":     {map[string]int64{"7": 3}, 1, 3},
		"gap":     {map[string]int64{"0": 1, "511": 2}, 512, 3},
		"wide":    {map[string]int64{"0": 1, "512": 2, "100": 4}, 257, 7},
		"extreme": {map[string]int64{"-9223372036854775808": 1, "9223372036854775807": 2}, 512, 3},
	}
	r := metricstest.Step("planner", 1, 1)
	r.Counts = map[string]map[string]int64{}
	for name, h := range histograms {
		r.Counts[name] = h.counts
	}
	dir := runDir(t)
	metricstest.Write(t, dir, r)
	calls, _ := forward(t, dir)
	for name, h := range histograms {
		var bins [2][]float64
		text, _ := json.Marshal(calls[3][2].(map[string]any)["planner/"+name])
		if err := json.Unmarshal(text, &bins); err != nil {
			t.Error(err)
		}
		var sum float64
		for _, n := range bins[0] {
			sum += n
		}
		if len(bins[0]) != h.bins || sum != h.sum || h.bins > 0 && len(bins[1]) != h.bins+1 || !slices.IsSorted(bins[1]) {
			t.Errorf("%s: %d bins of %v, %d edges", name, len(bins[0]), sum, len(bins[1]))
		}
	}
}
