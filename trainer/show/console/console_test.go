package console

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
)

var update = flag.Bool("update", false, "rewrite testdata/console.txt")

func mustRead(t *testing.T, dir string) metrics.Log {
	t.Helper()
	l, err := metrics.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fakeClock is a clock that the test sets.
type fakeClock struct{ now time.Time }

func (c *fakeClock) pass(d time.Duration) { c.now = c.now.Add(d) }

func newTestConsole(opt options) (*Console, *bytes.Buffer, *fakeClock) {
	var out bytes.Buffer
	c := &fakeClock{time.Unix(0, 0)}
	opt.Now = func() time.Time { return c.now }
	return newConsole(&out, opt), &out, c
}

// play reports a small run of two agents, with records out of order.
func play(c *Console, clock *fakeClock) {
	c.Progress(metrics.Progress{Agent: "planner", Activity: metrics.ColdStart, Done: 1, Total: 300})
	clock.pass(2 * time.Second)
	c.Report(metrics.Record{Kind: metrics.KindColdStart, Agent: "planner", Values: map[string]float64{"loss": 0.4312, "updates": 300, "trained_tokens": 412345, "learn_seconds": 12.3}})
	c.Report(metrics.Record{Kind: metrics.KindEval, Step: 0, Agent: "a-researcher-with-a-long-name", Values: map[string]float64{"expert_mean": 0.41, "rollout_seconds": 2.5}})
	c.Report(metrics.Record{Kind: metrics.KindEval, Step: 0, Agent: "planner", Values: map[string]float64{"accuracy": 0.3112, "pass_at_4": 0.61, "calls_mean": 1.3, "rollout_seconds": 2.6}})
	for n := range int64(2) {
		clock.pass(3 * time.Second)
		c.Progress(metrics.Progress{Agent: "planner", Activity: metrics.RollOut, Done: 12, Total: 128})
		c.Progress(metrics.Progress{Agent: "a-researcher-with-a-long-name", Activity: metrics.RollOut, Done: 17})
		c.Report(metrics.Record{Kind: metrics.KindStep, Step: n + 1, Agent: "a-researcher-with-a-long-name", Values: map[string]float64{
			"reward_mean": 0.4, "expert_mean": 0.52, "format_valid": 1, "calls_mean": 1.31, "entropy_mean": 10.123, "clip_frac_low": 0.012,
			"clip_frac_high": 0.001, "grad_norm": 123.456, "gap_mean": 0.00001234, "rollout_tokens_per_second": 12345, "learn_tokens_per_second": 1234567,
			"sampled_tokens": 1200, "trained_tokens": 7000, "rollouts_removed": 3}})
		c.Report(metrics.Record{Kind: metrics.KindStep, Step: n + 1, Agent: "planner", Values: map[string]float64{
			"reward_mean": 0.3456, "accuracy": 0.25, "format_valid": 0.51, "calls_mean": 1.31, "sampled_tokens": 900, "updates_skipped": 4}})
	}
	c.Note(metrics.Warnf("planner", metrics.TopicTools, "%s", "text of a model \x1b[31m\r\x07 is not trusted\n"))
	c.Report(metricstest.Evaluation(2, 0.84))
	c.Report(metricstest.Step("planner", 3, 0.5)) // its team never reports
	c.Summary(nil)
}

func TestSteps(t *testing.T) {
	for n, want := range map[int64]string{0: "0 steps", 1: "1 step", 2: "2 steps"} {
		if got := metrics.Steps(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestConsole(t *testing.T) {
	c, out, clock := newTestConsole(options{Agents: []string{"planner", "a-researcher-with-a-long-name"}, Steps: 30})
	play(c, clock)
	path := filepath.Join("testdata", "console.txt")
	if *update {
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || out.String() != string(want) {
		t.Errorf("%v; got\n%s\nwant\n%s", err, out, want)
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if strings.HasPrefix(line, "planner: ") || strings.Contains(line, "/128") {
			continue // notes and progress have no fixed length
		}
		if n := utf8.RuneCountInString(line); n > 80 && !strings.HasPrefix(line, "before") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if strings.ContainsAny(out.String(), "\x1b\r\x07") {
		t.Error("control characters in the output although there is no terminal")
	}
}

// TestSummaryOfTheWholeRun: records from before the resume count once. Agents of other processes do not count.
func TestSummaryOfTheWholeRun(t *testing.T) {
	tokens := func(agent string, n int64) metrics.Record {
		return metrics.Record{Kind: metrics.KindStep, Step: n, Agent: agent, Values: map[string]float64{"sampled_tokens": 100, "trained_tokens": 10}}
	}
	dir := t.TempDir()
	metricstest.Write(t, dir, metricstest.Evaluation(0, .25), tokens("planner", 1), tokens("planner", 2), tokens("elsewhere", 1))
	c, out, clock := newTestConsole(options{Agents: []string{"planner"}})
	c.Recall(mustRead(t, dir))
	clock.pass(7 * time.Second)
	c.Report(tokens("planner", 2)) // the checkpoint is from step 1
	c.Report(tokens("planner", 3))
	c.Report(metricstest.Evaluation(3, .5))
	out.Reset()
	c.Summary(nil)
	want := "3 steps (2 since the resume, in 0:07); held-out accuracy 0.25 -> 0.50 (best 0.50 after step 3)\n300 tokens sampled, 30 learned from\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// TestNoSummaryOfAFailedResume: a resume that fails before its first step prints no summary.
func TestNoSummaryOfAFailedResume(t *testing.T) {
	dir := t.TempDir()
	metricstest.Write(t, dir, metricstest.Evaluation(0, .25), metricstest.Step("planner", 1, 1))
	c, out, _ := newTestConsole(options{Agents: []string{"planner"}})
	c.Recall(mustRead(t, dir))
	if c.Summary(errors.New("these keys differ")); out.String() != "" {
		t.Errorf("%q", out)
	}
}

// TestTableWaitsForAll: the table of a step is printed once, after its last agent has reported.
func TestTableWaitsForAll(t *testing.T) {
	c, out, _ := newTestConsole(options{Agents: []string{"a", "b"}})
	c.Report(metricstest.Step("a", 1, 1))
	c.Report(metricstest.Step("a", 2, 1))
	if out.Len() > 0 {
		t.Errorf("printed early:\n%s", out)
	}
	c.Report(metricstest.Step("b", 1, 1))
	if !strings.Contains(out.String(), "step 1 ") || strings.Contains(out.String(), "step 2 ") {
		t.Errorf("after all of step 1:\n%s", out)
	}
	c.Report(metricstest.Step("b", 2, 1))
	if n := strings.Count(out.String(), "\nb "); n != 2 {
		t.Errorf("b is in the output %d times, want 2:\n%s", n, out)
	}
}

func TestTerminal(t *testing.T) {
	c, out, clock := newTestConsole(options{Agents: []string{"a"}, Terminal: true, Color: true, Width: 40})
	for i := range 50 {
		c.Progress(metrics.Progress{Agent: "a", Activity: metrics.Waiting, For: []string{strings.Repeat("long", 20)}, Done: i, Total: 50})
		clock.pass(10 * time.Millisecond)
	}
	redrawn := strings.Count(out.String(), "\r\x1b[K")
	if redrawn < 4 || redrawn > 6 {
		t.Errorf("redrawn %d times in half a second", redrawn)
	}
	if strings.Contains(out.String(), "\n") {
		t.Error("progress began a new line")
	}
	out.Reset()
	c.Note(metrics.Infof("", metrics.TopicStop, "done"))
	if out.String() != "\r\x1b[Kdone\n" {
		t.Errorf("a note on top of the progress line: %q", out)
	}
	out.Reset()
	c.Note(metrics.Infof("a", metrics.TopicTools, "a text with a warning in it"))
	c.Note(metrics.Warnf("a", metrics.TopicGap, "a gap"))
	if want := "a: a text with a warning in it\n\x1b[33ma: warning: a gap\x1b[0m\n"; out.String() != want {
		t.Errorf("notes: %q, want %q", out, want)
	}
	play(c, clock)
	if !strings.Contains(out.String(), "\x1b[1mstep 1") {
		t.Error("no bold title")
	}
}

// TestPlainProgress: without a terminal, progress is a line from time to time.
func TestPlainProgress(t *testing.T) {
	c, out, clock := newTestConsole(options{})
	for i := range 120 {
		c.Progress(metrics.Progress{Agent: "a", Activity: metrics.RollOut, Version: 1, Done: i, Total: 120})
		clock.pass(100 * time.Millisecond)
	}
	if n := strings.Count(out.String(), "\n"); n < 2 || n > 4 {
		t.Errorf("%d lines in 12 seconds:\n%s", n, out)
	}
}

func TestCount(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 7: "7", 999: "999", 1000: "1.0k", 12345: "12.3k", 99960: "100k", 999499: "999k", 1234567: "1.2M", 5e9: "5.0G", 4e12: "4T"} {
		if got := formatCount(v); got != want {
			t.Errorf("count(%v) = %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.05: "0.0500", 1.26: "1.26", 123.456: "123", 0.00399: "4e-3", 0.00001234: "1e-5", 12345: "1e4", -0.5: "-0.500"} {
		if got := formatNumber(v); got != want {
			t.Errorf("short(%v) = %s, want %s", v, got, want)
		}
	}
}
