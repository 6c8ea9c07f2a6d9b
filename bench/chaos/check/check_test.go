package check

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// correctRun is a correct run of two steps by two agents. Tests spoil it.
type correctRun struct {
	Settings
	whole, run map[string]string // files of the uninterrupted run and of the checked run, by path
	entries    []entry
	kills      []Kill
}

func newCorrectRun() *correctRun {
	m := &correctRun{Settings: Settings{Steps: 2, Agents: []string{"a", "b"}}}
	m.whole = map[string]string{}
	var parts []agentPart
	for _, agent := range m.Agents {
		ledger := `{"step":0,"rollouts":[{"id":"q0/0","trained":[1]},{"id":"q0/1","removed":"why"}],"updates":1}` + "\n" +
			`{"step":1,"rollouts":[{"id":"q1/0","trained":[2]},{"id":"q1/1","trained":[1]}],"updates":2}` + "\n"
		m.whole["ledger/"+agent+".jsonl"] = ledger
		part := agentPart{Name: agent, Ledger: ledgerMark{int64(len(ledger)), sum(ledger)}}
		for _, name := range []string{"model.safetensors", "optimizer.state"} {
			text := agent + name
			m.whole["checkpoints/step-000002/"+agent+"/"+name] = text
			part.Files = append(part.Files, file{name, int64(len(text)), sum(text)})
		}
		parts = append(parts, part)
	}
	text, _ := json.Marshal(manifest{2, parts})
	m.whole["checkpoints/step-000002/manifest.json"] = string(text)
	m.run = maps.Clone(m.whole)
	m.entries = []entry{
		{event: "round", round: 1}, {event: "start", agent: "a", epoch: 1, version: -1}, {event: "start", agent: "b", epoch: 1, version: -1},
		{event: "version", agent: "a", epoch: 1, version: 1}, {event: "version", agent: "b", epoch: 2, version: 1},
		{event: "round", round: 2}, {event: "start", agent: "a", epoch: 2, version: 1, digest: "d"}, {event: "start", agent: "b", epoch: 3, version: 1, digest: "d"},
		{event: "version", agent: "a", epoch: 2, version: 2}, {event: "version", agent: "b", epoch: 3, version: 2},
	}
	for _, target := range []string{"a", "b", "redis"} {
		for _, phase := range Phases[:3] {
			m.kills = append(m.kills, Kill{Target: target, Phase: phase})
		}
	}
	return m
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// replace replaces a text in a file of the run. It panics if the file does not contain the text.
func (m *correctRun) replace(path, old, new string) {
	if !strings.Contains(m.run[path], old) {
		panic(path + " has no " + old)
	}
	m.run[path] = strings.Replace(m.run[path], old, new, 1)
}

func (m *correctRun) check(t *testing.T) Findings {
	t.Helper()
	dir := t.TempDir()
	for name, files := range map[string]map[string]string{"whole": m.whole, "run": m.run} {
		for path, text := range files {
			path = filepath.Join(dir, name, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := m.Settings
	s.Whole, s.Dirs, s.Kills = filepath.Join(dir, "whole"), map[string]string{}, filepath.Join(dir, "kills")
	for _, agent := range s.Agents {
		s.Dirs[agent] = filepath.Join(dir, "run")
	}
	var kills strings.Builder
	for _, k := range m.kills {
		fmt.Fprintf(&kills, `{"target":%q,"phase":%q}`+"\n", k.Target, k.Phase)
	}
	if err := os.WriteFile(s.Kills, []byte(kills.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	var f Findings
	f.ledgers(s)
	f.manifests(s)
	f.rounds(s, m.entries)
	f.coverage(s)
	return f
}

// TestHeld: a correct run has no findings.
func TestHeld(t *testing.T) {
	f := newCorrectRun().check(t)
	if len(f.Broken)+len(f.Void) > 0 || !f.Equal || f.Rollouts != 4 || f.Rounds != 2 || f.Redone != 0 || f.Takeovers != 1 {
		t.Errorf("got findings %+v, want none broken or void, 4 rollouts, 2 rounds and 1 takeover", f)
	}
}

// TestEmptyRound: a round in which no agent started is accepted, unless an agent published a version in it.
func TestEmptyRound(t *testing.T) {
	m := newCorrectRun()
	m.entries = append(m.entries, entry{event: "round", round: 3})
	if f := m.check(t); len(f.Broken)+len(f.Void) > 0 {
		t.Errorf("a round in which no agent started: got findings %+v, want none", f)
	}
	m.entries = append(m.entries, entry{event: "version", agent: "a", epoch: 9, version: 3})
	if f := m.check(t); len(f.Broken) == 0 {
		t.Error("a version in a round in which no agent started: got no finding")
	}
}

// TestBroken: each broken promise is found, with a description.
func TestBroken(t *testing.T) {
	ledger, files := "ledger/b.jsonl", "checkpoints/step-000002/b/"
	for _, c := range []struct {
		want  string
		spoil func(*correctRun)
	}{
		{"rollout q1/1 is lost", func(m *correctRun) { m.replace(ledger, `,{"id":"q1/1","trained":[1]}`, "") }},
		{"rollout q1/0 is in the ledger 2 times", func(m *correctRun) { m.replace(ledger, "q1/1", "q1/0") }},
		{"the ledger has 3 steps", func(m *correctRun) { m.run[ledger] += `{"step":2,"rollouts":[],"updates":2}` + "\n" }},
		{"line 2 of the ledger is of step 0", func(m *correctRun) { m.replace(ledger, `"step":1`, `"step":0`) }},
		{"the removed rollouts of step 0 differ", func(m *correctRun) { m.replace(ledger, `"removed":"why"`, `"trained":[1]`) }},
		{"neither trained nor removed", func(m *correctRun) { m.replace(ledger, `,"removed":"why"`, "") }},
		{"the uninterrupted run has no rollout", func(m *correctRun) { m.replace(ledger, "q1/1", "q9/1") }},
		{"ends in the middle of a line", func(m *correctRun) { m.run[ledger] = strings.TrimSuffix(m.run[ledger], "\n") }},
		{"b.jsonl differs from the manifest", func(m *correctRun) { m.replace(ledger, `"updates":2`, `"updates":3`) }},
		{"model.safetensors differs from the manifest", func(m *correctRun) { m.replace(files+"model.safetensors", "b", "c") }},
		{"optimizer.state is not the uninterrupted run's", func(m *correctRun) {
			m.run[files+"optimizer.state"] = "other"
			m.replace("checkpoints/step-000002/manifest.json", fmt.Sprintf(`"size":%d,"sha256":"%s"`, len("boptimizer.state"), sum("boptimizer.state")),
				fmt.Sprintf(`"size":5,"sha256":"%s"`, sum("other")))
		}},
		{"no such file", func(m *correctRun) { delete(m.run, "checkpoints/step-000002/manifest.json") }},
		{"round 3 follows round 1", func(m *correctRun) { m.entries[5].round = 3 }},
		{"starts round 2 from version 0", func(m *correctRun) { m.entries[7].version = 0 }},
		{"b starts round 2 from version 1 (e)", func(m *correctRun) { m.entries[7].digest = "e" }},
		{"starts twice", func(m *correctRun) { m.entries[7].agent = "a" }},
		{"and a round before it from 5", func(m *correctRun) { m.entries[1].version, m.entries[2].version = 5, 5 }},
		{"version 3 of a follows 1", func(m *correctRun) { m.entries[8].version = 3 }},
		{"version 1 of a follows 1", func(m *correctRun) { m.entries[8].version = 1 }},
		{"writes with epoch 1 after 3", func(m *correctRun) { m.entries[9].epoch = 1 }},
		{"the last round ends at version 1", func(m *correctRun) { m.entries = m.entries[:9] }},
	} {
		m := newCorrectRun()
		c.spoil(m)
		if f := m.check(t); !strings.Contains(strings.Join(f.Broken, "\n"), c.want) {
			t.Errorf("got broken promises %q (void: %q), want %q", f.Broken, f.Void, c.want)
		}
	}
}

// TestVoid: a run is void if it cannot prove anything: too few kills, or no complete run to compare with.
func TestVoid(t *testing.T) {
	for _, c := range []struct {
		want  string
		spoil func(*correctRun)
	}{
		{"redis was killed in 2 phases", func(m *correctRun) { m.kills = m.kills[:len(m.kills)-1] }},
		{"a was killed in 2 phases", func(m *correctRun) { m.kills[0].Phase = "start" }},
		{"9 kills where 10", func(m *correctRun) { m.Minimum = 10 }},
		{"the uninterrupted run", func(m *correctRun) { delete(m.whole, "checkpoints/step-000002/manifest.json") }},
		{"the uninterrupted run's ledger", func(m *correctRun) { m.whole["ledger/a.jsonl"] = "" }},
	} {
		m := newCorrectRun()
		c.spoil(m)
		if f := m.check(t); !strings.Contains(strings.Join(f.Void, "\n"), c.want) {
			t.Errorf("got reasons %q (broken: %q), want %q", f.Void, f.Broken, c.want)
		}
	}
}
