package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	// numpy.quantile([1, 2, 3, 4, 10], [0.5, 0.2, 0.8])
	want := Quantiles{Median: 3, P20: 1.8, P80: 5.2}
	if got := quantiles([]float64{10, 1, 3, 2, 4}); math.Abs(got.Median-want.Median)+math.Abs(got.P20-want.P20)+math.Abs(got.P80-want.P80) > 1e-12 {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Quantile([]float64{10, 1, 3, 2, 4}, 0.99); math.Abs(got-9.76) > 1e-12 {
		t.Errorf("the 0.99-quantile is %v, want 9.76", got)
	}
	if first, last, none := Quantile([]float64{3, 1}, 0), Quantile([]float64{3, 1}, 1), Quantile(nil, 0.5); first != 1 || last != 3 || none != 0 {
		t.Errorf("got minimum %v, maximum %v and %v of no samples, want 1, 3 and 0", first, last, none)
	}
	if got := quantiles([]float64{7}); got != (Quantiles{7, 7, 7}) {
		t.Errorf("one sample: %v", got)
	}
}

// The values are the results of uniform(3, 2, 5) and index(3, 7, 8) in bench/peers/inputs.py.
func TestInputs(t *testing.T) {
	u, i := make([]float32, 5), make([]int32, 8)
	Uniform(u, 3, 2)
	Index(i, 3, 7)
	if want := []float32{1.7967555522918701, -1.3320536613464355, 1.3681387901306152, -0.5376152992248535, -0.44327569007873535}; !slices.Equal(u, want) {
		t.Errorf("%v, want %v", u, want)
	}
	if want := []int32{6, 1, 5, 2, 2, 0, 6, 3}; !slices.Equal(i, want) {
		t.Errorf("%v, want %v", i, want)
	}
}

// timedProvider is a provider whose times are given. It notes the order of turns.
type timedProvider struct {
	name   string
	times  []float64
	err    float64
	turns  *[]string
	fails  int // number of the run that fails; 0: none
	runs   int
	closed bool
}

func (c *timedProvider) Run(_ context.Context, repeat int, _ Cache) (Samples, error) {
	*c.turns = append(*c.turns, c.name)
	if c.runs++; c.runs == c.fails {
		return Samples{}, errors.New("out of memory")
	}
	s := Samples{PeakExtraBytes: 100}
	for range repeat {
		s.Seconds = append(s.Seconds, c.times[0])
		c.times = append(c.times[1:], c.times[0])
	}
	return s, nil
}
func (c *timedProvider) Check(context.Context) (float64, error) { return c.err, nil }
func (c *timedProvider) Close() error                           { c.closed = true; return nil }

func (c *timedProvider) opener() Opener {
	return Opener{c.name, func(context.Context) (Provider, Setup, error) { return c, Setup{Version: "1"}, nil }}
}

func TestMeasure(t *testing.T) {
	var turns []string
	ours := &timedProvider{name: Ours, times: []float64{0.2}, err: 1e-7, turns: &turns}
	peer := &timedProvider{name: "peer", times: []float64{0.3, 0.5, 0.4}, turns: &turns}
	broken := Opener{"broken", func(context.Context) (Provider, Setup, error) { return nil, Setup{}, errors.New("no compiler") }}
	row, err := Schedule{Samples: 6, Rounds: 3, Long: time.Second, Endless: time.Minute}.Measure(t.Context(), Row{Name: "case", Cache: Cold,
		Bytes: Amount{Value: 5e9}, FLOPs: Amount{Value: 20e9}, Targets: []Target{
			{Kind: Faster, Peer: "peer", Bound: 2}, {Kind: Faster, Peer: "peer", Bound: 1.9}, {Kind: Floor, Bound: 2},
			{Kind: Memory, Peer: "peer", Bound: 0.9}, {Kind: Faster, Peer: "broken", Bound: 1}}},
		[]Opener{ours.opener(), broken, peer.opener()})
	if err != nil {
		t.Fatal(err)
	}
	row.Finish(Ceilings{Copy: Quantiles{Median: 50}, GEMM: Quantiles{Median: 100}})

	// One run each when they enter, then turns.
	if got := strings.Join(turns, " "); got != "mgrpo peer"+strings.Repeat(" mgrpo peer", 3) {
		t.Errorf("turns: %s", got)
	}
	if !ours.closed || !peer.closed {
		t.Error("a provider was left open")
	}
	if row.Providers[1].Status != "no compiler" || row.Providers[0].Samples != 6 || row.Providers[0].MaxError != 1e-7 || row.Providers[2].Version != "1" {
		t.Errorf("providers: %+v", row.Providers)
	}
	// 5 GB at 50 GB/s are shorter than 20 GFLOP at 100 GFLOP/s.
	if row.FloorSeconds != 0.2 || row.FloorOf != "gemm" || row.Providers[0].PercentOfFloor != 100 || row.Providers[0].GBps != 25 {
		t.Errorf("floor %v of %s, %+v", row.FloorSeconds, row.FloorOf, row.Providers[0])
	}
	if !reflect.DeepEqual(row.Ratio, map[string]float64{"peer": 2}) {
		t.Errorf("ratio %v", row.Ratio)
	}
	var met []bool
	for _, g := range row.Targets {
		met = append(met, g.Met)
	}
	if !reflect.DeepEqual(met, []bool{true, true, true, false, false}) || *row.Targets[3].Value != 1 || row.Targets[4].Value != nil {
		t.Errorf("targets met: %v", met)
	}
}

func TestLongSamplesAreFewer(t *testing.T) {
	var turns []string
	slow, endless := &timedProvider{name: Ours, times: []float64{3}, turns: &turns}, &timedProvider{name: "peer", times: []float64{300}, turns: &turns}
	schedule := Schedule{Samples: 6, Rounds: 3, Long: time.Second, Endless: time.Minute}
	row, err := schedule.Measure(t.Context(), Row{}, []Opener{slow.opener(), endless.opener()})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(turns, " "); got != "mgrpo peer mgrpo mgrpo mgrpo" || row.Providers[0].Samples != 3 {
		t.Errorf("turns: %s; %d samples", got, row.Providers[0].Samples)
	}
	if p := row.Providers[1]; p.Samples != 1 || p.Median != 300 || p.PeakExtraBytes != 100 || p.Status != "ok" {
		t.Errorf("sampled once: %+v", p)
	}
}

// If a peer fails in a later turn, its row has the error, and the other peers continue.
func TestPeerFailsLate(t *testing.T) {
	var turns []string
	ours, peer := &timedProvider{name: Ours, times: []float64{0.2}, turns: &turns}, &timedProvider{name: "peer", times: []float64{0.3}, turns: &turns, fails: 2}
	schedule := Schedule{Samples: 3, Rounds: 3, Long: time.Second, Endless: time.Minute}
	row, err := schedule.Measure(t.Context(), Row{}, []Opener{ours.opener(), peer.opener()})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(turns, " "); got != "mgrpo peer mgrpo peer mgrpo mgrpo" || row.Providers[0].Samples != 3 {
		t.Errorf("turns: %s; %+v", got, row.Providers[0])
	}
	if p := row.Providers[1]; p.Status != "out of memory" || p.Samples != 0 || p.Median != 0 {
		t.Errorf("the peer: %+v", p)
	}
}

// The peer opens after ours has closed, and a provider's samples follow each other.
func TestAlone(t *testing.T) {
	var turns []string
	ours, peer := &timedProvider{name: Ours, times: []float64{0.2}, turns: &turns}, &timedProvider{name: "peer", times: []float64{0.3}, turns: &turns}
	second := peer.opener()
	open := second.Open
	second.Open = func(ctx context.Context) (Provider, Setup, error) {
		if !ours.closed {
			t.Error("two providers were open at once")
		}
		return open(ctx)
	}
	schedule := Schedule{Samples: 2, Rounds: 2, Long: time.Second, Endless: time.Minute, Alone: true}
	row, err := schedule.Measure(t.Context(), Row{}, []Opener{ours.opener(), second})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(turns, " "); got != "mgrpo mgrpo mgrpo peer peer peer" || !peer.closed || row.Providers[1].Samples != 2 {
		t.Errorf("turns: %s; %+v", got, row.Providers[1])
	}
}

func TestOursMustWork(t *testing.T) {
	var turns []string
	wrong := &timedProvider{name: Ours, times: []float64{1}, err: math.NaN(), turns: &turns}
	if _, err := DefaultSchedule.Measure(t.Context(), Row{Name: "case"}, []Opener{wrong.opener()}); err == nil || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("an error of NaN was taken: %v", err)
	}
	if !wrong.closed {
		t.Error("left open")
	}
}

// The rates of the cache bound hot rows, and the matrix product bounds rows that memory does not.
func TestFloor(t *testing.T) {
	c := Ceilings{Copy: Quantiles{Median: 10}, Read: Quantiles{Median: 8}, CachedCopy: Quantiles{Median: 100}, CachedRead: Quantiles{Median: 80}, GEMM: Quantiles{Median: 100}, GEMMBF16: Quantiles{Median: 200}}
	for want, row := range map[string]Row{
		"memory copy 0.1": {Cache: Cold}, "memory read 0.125": {Cache: Cold, ReadOnly: true},
		"cache copy 0.01": {Cache: Hot}, "cache read 0.0125": {Cache: Hot, ReadOnly: true}, "gemm 5": {FLOPs: Amount{Value: 5e11}},
		"gemm 2.5": {DType: BF16Factors, FLOPs: Amount{Value: 5e11}},
	} {
		row.Bytes.Value = 1e9
		row.Finish(c)
		kind, seconds := want[:strings.LastIndex(want, " ")], want[strings.LastIndex(want, " ")+1:]
		if row.FloorOf != kind || Seconds(row.FloorSeconds) != map[string]string{"0.1": "100 ms", "0.125": "125 ms", "0.01": "10 ms", "0.0125": "12.5 ms", "5": "5 s", "2.5": "2.5 s"}[seconds] {
			t.Errorf("%s: %s, %s", want, row.FloorOf, Seconds(row.FloorSeconds))
		}
	}
}

func TestResults(t *testing.T) {
	r := &Results{Suite: "kernels", Machine: Machine{CPU: "Intel(R) Xeon(R) @ 2.0GHz", Cores: 2, ISA: "avx2"}, Rows: []Row{{
		Name: "case", Shape: "2 x 3", DType: "float32", Cache: Hot, Ratio: map[string]float64{"peer": 1.5},
		Providers: []Result{{Name: Ours, Quantiles: Quantiles{0.5e-3, 0.4e-3, 0.6e-3}, Status: "ok", PeakExtraBytes: 1 << 30},
			{Name: "peer", Quantiles: Quantiles{0.75e-3, 0.7e-3, 0.8e-3}, Status: "ok"}, {Name: "other", Status: "no compiler"}},
		Targets: []Target{{Text: "at least 2", Value: new(1.5)}},
	}}}
	if slug := r.Machine.Slug(); slug != "intel-r-xeon-r-2-0ghz-2c-avx2" {
		t.Errorf("slug %s", slug)
	}
	path := filepath.Join(t.TempDir(), "new", "r.json")
	if err := WriteFile(path, r); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%v: got %+v", err, got)
	}
	for _, want := range []string{"500 µs  400 µs  600 µs", "1024 MiB", "1.50", "no compiler", "at least 2: 1.5, missed"} {
		if !strings.Contains(r.Table(), want) {
			t.Errorf("no %q in\n%s", want, r.Table())
		}
	}
	if err := os.WriteFile(path, []byte(`{"suite": "kernels", "speed": 1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil {
		t.Error("an unknown key was read")
	}
}

// A peer answers over lines of JSON; here it is a shell script in the place of Python.
func TestPeer(t *testing.T) {
	root, bin := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, PeerSite), 0o755); err != nil {
		t.Fatal(err)
	}
	script := `#!/bin/sh
while read line; do
  case $line in
  *prepare*refused*) echo '{"ok": false, "why": "no such provider"}' ;;
  *prepare*) echo '{"ok": true, "version": "2", "settings": {"threads": 3}}' ;;
  *'"repeat":2'*) echo '{"seconds": [1, 2], "peak_extra_bytes": 7}' ;;
  *run*) echo gone >&2; exit 3 ;;
  *check*) echo '{"max_error": 0.25}' ;;
  *) exit 0 ;;
  esac
done
`
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	peers := Options{Root: root, Device: "cpu", Threads: 3}

	if _, _, err := peers.Peer("refused", nil).Open(t.Context()); err == nil || err.Error() != "no such provider" {
		t.Errorf("a refusal became %v", err)
	}
	p, setup, err := peers.Peer("torch", map[string]int{"rows": 1}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if setup.Version != "2" || setup.Settings["threads"] != 3.0 {
		t.Errorf("setup %+v", setup)
	}
	if s, err := p.Run(t.Context(), 2, Hot); err != nil || !reflect.DeepEqual(s, Samples{[]float64{1, 2}, 7}) {
		t.Errorf("%v, %v", s, err)
	}
	if worst, err := p.Check(t.Context()); err != nil || worst != 0.25 {
		t.Errorf("%v, %v", worst, err)
	}
	if _, err := p.Run(t.Context(), 1, Hot); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a peer that ended: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestPeersAbsent(t *testing.T) {
	_, _, err := Options{Root: t.TempDir(), Device: "cpu"}.Peer("torch", nil).Open(t.Context())
	if err == nil || !strings.Contains(err.Error(), "make bench-peers") {
		t.Errorf("got %v", err)
	}
}

// TestReplace: rows of a later run take the places of theirs, and say so.
func TestReplace(t *testing.T) {
	old := &Results{Date: "then", Rows: []Row{{Name: "a", Cache: Hot}, {Name: "a", Cache: Cold}, {Name: "b", Cache: Hot}}}
	later := &Results{Date: "now", LoadBefore: 2, Machine: Machine{Commit: "c"}, Rows: []Row{{Name: "a", Cache: Cold, FloorSeconds: 1}, {Name: "n", Cache: Hot}}}
	old.Replace(later)
	var got []string
	for _, r := range old.Rows {
		again := ""
		if r.Again != nil {
			again = r.Again.Date + r.Again.Commit
		}
		got = append(got, fmt.Sprint(r.Name, r.Cache, r.FloorSeconds, again))
	}
	want := []string{fmt.Sprint("a", Hot, 0, ""), fmt.Sprint("a", Cold, 1, "nowc"), fmt.Sprint("b", Hot, 0, ""), fmt.Sprint("n", Hot, 0, "nowc")}
	if !slices.Equal(got, want) || old.Date != "then" {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestCompareFiles compares a suite with itself twice as fast, and two runs.
func TestCompareFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content any) string {
		path := filepath.Join(dir, name)
		if err := WriteFile(path, content); err != nil {
			t.Fatal(err)
		}
		return path
	}
	suite := func(seconds float64) *Results {
		row := Row{Suite: "kernels", Name: "swiglu", Shape: "8 x 2*4", DType: "float32", Cache: Hot,
			Providers: []Result{{Name: Ours, Status: "ok", Quantiles: Quantiles{seconds, seconds * 0.9, seconds * 1.1}}, {Name: "torch-eager", Status: "ok", Quantiles: Quantiles{0.4, 0.4, 0.4}}}}
		row.Finish(Ceilings{CachedCopy: Quantiles{Median: 10}, GEMM: Quantiles{Median: 10}})
		return &Results{Suite: "kernels", Rows: []Row{row}}
	}
	run := func(name string, after float64) map[string]any {
		return map[string]any{"run": name, "questions": 80, "before": 0.1, "after": after}
	}
	slow, fast := write("slow.json", suite(0.2)), write("fast.json", suite(0.1))
	single, team := write("single.json", run("single", 0.6)), write("team.json", run("team", 0.8))
	for _, c := range []struct{ before, after, want, fails string }{
		{slow, fast, "2.00           1.64 to 2.44  torch-eager 2.00  torch-eager 4.00", ""},
		{slow, fast, slow + ": ", ""}, {slow, fast, fast + ": ", ""},
		{single, team, "+0.200", ""},
		{single, team, single + "  " + team, ""}, // not the names of the runs, which may be equal
		{slow, team, "", "unknown field"},
		{single, fast, "", "no results of a run"},
		{slow, write("other.json", &Results{Suite: "store", Rows: []Row{}}), "", "of the suite store"},
		{write("none.json", map[string]any{"a": 1}), fast, "", "neither"},
		{filepath.Join(dir, "absent.json"), fast, "", "no such file"},
	} {
		got, err := Compare(c.before, c.after)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s, %s: %v, want %q", c.before, c.after, err, c.fails)
			}
			continue
		}
		if err != nil || !strings.Contains(got, c.want) {
			t.Errorf("no %q in\n%s%v", c.want, got, err)
		}
	}
}

func TestMaxError(t *testing.T) {
	var e MaxError
	e.Add(1, 1)
	e.Add(-2.5, -2)
	if e.Value() != 0.25 {
		t.Errorf("error %v, want 0.5 of 2", e.Value())
	}
	e.Add(math.NaN(), 1)
	if !math.IsNaN(e.Value()) {
		t.Errorf("the error with a NaN is %v", e.Value())
	}
}
