package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func step(agent string, n int64, reward float64) Record {
	return Record{Kind: KindStep, Step: n, Agent: agent, Values: map[string]float64{"reward_mean": reward}}
}

func evaluation(n int64, accuracy float64) Record {
	return Record{Kind: KindEval, Step: n, Agent: "planner", Values: map[string]float64{"accuracy": accuracy}}
}

func report(t *testing.T, dir string, records ...Record) {
	t.Helper()
	j := NewJSONL(dir)
	for _, r := range records {
		j.Report(r)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, dir string) Log {
	t.Helper()
	log, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// TestResume: records that a resumed run writes again replace the earlier ones of that agent, and its later steps.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	report(t, dir, evaluation(0, .1), step("planner", 1, .1), step("solver", 1, .1), step("planner", 2, .2),
		evaluation(2, .2), step("planner", 3, .3), step("solver", 2, .2))
	report(t, dir, evaluation(2, .25), step("planner", 3, .35))
	got := map[string]float64{}
	for _, l := range mustRead(t, dir).Records {
		key := l.Kind + l.Agent + string(rune('0'+l.Step))
		if _, twice := got[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		got[key] = max(l.Values["reward_mean"], l.Values["accuracy"])
		if l.Time.IsZero() {
			t.Errorf("%s has no time", key)
		}
	}
	want := map[string]float64{"evalplanner0": .1, "stepplanner1": .1, "stepplanner2": .2, "evalplanner2": .25,
		"stepplanner3": .35, "stepsolver1": .1, "stepsolver2": .2}
	if len(got) != len(want) {
		t.Errorf("records %v, want %v", got, want)
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %v, want %v", k, got[k], v)
		}
	}
	report(t, dir, evaluation(0, .5)) // started over
	if n := len(mustRead(t, dir).Records); n != 3 {
		t.Errorf("%d records after the main agent started over, want its evaluation and 2 of the solver", n)
	}
}

// TestInterrupted: a line that a crash cut off is skipped, and the other lines are read.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	report(t, dir, step("planner", 1, .1))
	path := filepath.Join(dir, FileName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, text[:20]...), 0o644); err != nil {
		t.Fatal(err)
	}
	report(t, dir, step("planner", 2, .2))
	log := mustRead(t, dir)
	if len(log.Records) != 2 || log.Damaged != 1 {
		t.Errorf("%d records and %d damaged, want 2 and 1", len(log.Records), log.Damaged)
	}
}

// TestSeveralWriters: agents in separate processes may share a folder.
func TestSeveralWriters(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		all.Go(func() {
			j := NewJSONL(dir)
			for n := range int64(50) {
				j.Report(step(name, n+1, 1))
				j.Note(Infof(name, TopicStart, "%s", strings.Repeat("x", 500)))
			}
			if err := j.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if log := mustRead(t, dir); len(log.Records) != 150 || len(log.Notes) != 150 || log.Damaged != 0 {
		t.Errorf("%d records, %d notes, %d damaged: want 150, 150, 0", len(log.Records), len(log.Notes), log.Damaged)
	}
}

func TestNotFiniteIsAbsent(t *testing.T) {
	dir := t.TempDir()
	report(t, dir, Record{Kind: KindStep, Step: 1, Agent: "a", Values: map[string]float64{"x": math.NaN(), "y": math.Inf(1), "z": 2}})
	if v := mustRead(t, dir).Records[0].Values; len(v) != 1 || v["z"] != 2 {
		t.Errorf("values %v, want z alone", v)
	}
}

func TestNothingToWriteCreatesNothing(t *testing.T) {
	dir := t.TempDir()
	report(t, filepath.Join(dir, "run"))
	if _, err := os.Stat(filepath.Join(dir, "run")); !os.IsNotExist(err) {
		t.Errorf("the folder exists: %v", err)
	}
}

func TestWriteFailureIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	j := NewJSONL(path) // a file has the folder's name
	j.Report(step("a", 1, 1))
	if err := j.Close(); err == nil {
		t.Error("no error")
	}
}

func TestHeldOutAccuracies(t *testing.T) {
	dir := t.TempDir()
	report(t, dir, evaluation(0, .25))
	if _, _, err := HeldOutAccuracies(dir); err == nil || !strings.Contains(err.Error(), "eval.before") {
		t.Errorf("one evaluation: %v", err)
	}
	report(t, dir, evaluation(10, .5), evaluation(20, .75))
	late := t.TempDir()
	report(t, late, evaluation(10, .5), evaluation(20, .75))
	if _, _, err := HeldOutAccuracies(late); err == nil || !strings.Contains(err.Error(), "eval.before") {
		t.Errorf("no evaluation before training: %v", err)
	}
	before, after, err := HeldOutAccuracies(dir)
	if err != nil || before != .25 || after != .75 {
		t.Errorf("%v -> %v, %v; want 0.25 -> 0.75", before, after, err)
	}
}

// TestEvaluations: evaluations of other questions than the last one are not compared with it.
func TestEvaluations(t *testing.T) {
	line := func(step int64, digest string) Line {
		return Line{Record: Record{Kind: KindEval, Step: step, HeldOutDigest: digest, Values: map[string]float64{Accuracy: .5}}}
	}
	sub := Line{Record: Record{Kind: KindEval, Step: 30, Agent: "sub", Values: map[string]float64{ExpertMean: .5}}}
	for want, records := range map[string][]Line{
		"":           nil,
		" 10a":       {line(10, "a"), sub},
		" 20b 30b":   {line(0, "a"), line(10, "a"), line(20, "b"), line(30, "b"), sub},
		" 0 20b":     {line(0, ""), line(10, "a"), line(20, "b")}, // the first record has no digest
		" 0a 10b 20": {line(0, "a"), line(10, "b"), line(20, "")},
	} {
		got := ""
		for _, l := range Evaluations(records) {
			got += fmt.Sprintf(" %d%s", l.Step, l.HeldOutDigest)
		}
		if got != want {
			t.Errorf("got%s, want%s", got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"time":"2026-01-02T03:04:05Z","kind":"step","step":1,"agent":"a","values":{"x":1},"counts":{"calls":{"1":2}}}`)
	f.Add("{\"kind\":\"eval\",\"step\":-9223372036854775808}\n\x00\n[]\n{\"kind\":\"note\",\"text\":\"\\u2028\"}")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		log, _ := read(strings.NewReader(text))
		for i, l := range log.Records {
			for _, m := range log.Records[:i] {
				if m.Agent == l.Agent && m.position() >= l.position() {
					t.Fatalf("%s: %d after %d", l.Agent, l.position(), m.position())
				}
			}
		}
	})
}

// TestNotesKeepTheirSeverity: a note's text does not change its severity.
func TestNotesKeepTheirSeverity(t *testing.T) {
	dir := t.TempDir()
	j := NewJSONL(dir)
	j.Note(Warnf("planner", TopicGap, "log-prob gap"))
	j.Note(Infof("planner", TopicTools, "warning: a tool said this"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	want := []Note{{"planner", Warning, TopicGap, "log-prob gap"}, {"planner", Info, TopicTools, "warning: a tool said this"}}
	var got []Note
	for _, l := range mustRead(t, dir).Notes {
		got = append(got, Note{l.Agent, l.Severity, l.Topic, l.Text})
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestNoteHasNoStep: the line of a note has neither a step nor values, and Read returns the same note.
func TestNoteHasNoStep(t *testing.T) {
	dir := t.TempDir()
	j := NewJSONL(dir)
	note := Warnf("planner", TopicStart, "text")
	j.Note(note)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, FileName))
	var keys map[string]any
	if err == nil {
		err = json.Unmarshal(data, &keys)
	}
	if got := slices.Sorted(maps.Keys(keys)); err != nil || !slices.Equal(got, []string{"agent", "kind", "severity", "text", "time", "topic"}) {
		t.Errorf("%s: keys %v, %v", data, got, err)
	}
	notes := mustRead(t, dir).Notes
	if len(notes) != 1 || (Note{notes[0].Agent, notes[0].Severity, notes[0].Topic, notes[0].Text}) != note || notes[0].Time.IsZero() {
		t.Errorf("%+v", notes)
	}
}
