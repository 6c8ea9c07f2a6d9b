package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Texts of other workers in the store cannot make the status wider than a terminal, or control the terminal.
func TestStatusFits80Columns(t *testing.T) {
	long := strings.Repeat("a-name-of-64-bytes-", 4)[:64]
	version := int64(99_999_999)
	s := &store.Status{
		Run: strings.Repeat("r", 64), Round: 7, Asked: long,
		Agents: []store.AgentStatus{
			{Agent: long, Alive: true, LeaseLeft: 599.94, Epoch: 123456, Version: &version, Lag: 12345, ClaimedCount: 65536,
				Claimed: []store.Call{{Phase: "step-17", ID: strings.Repeat("é", 300), Age: 1.26, Delivery: 2}}},
			{Agent: "helper", Version: new(int64)},
			{Agent: "silent", Alive: true, Silent: 8.74, LeaseLeft: 6.26},
		},
		Phases: []store.PhaseStatus{{Phase: "checkpoint-1099511627776", Begun: true, Rollouts: 128, Outcomes: 3}},
		Stop:   &store.StopStatus{Agent: "helper", Kind: store.Failure, Reason: "out of\x1b[2J memory " + strings.Repeat("long ", 50)},
	}
	for _, stopped := range []bool{true, false} {
		if !stopped {
			s.Stop = nil
		}
		var b bytes.Buffer
		if err := printStatus(&b, s); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if utf8.RuneCountInString(line) > 80 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' }) {
				t.Errorf("%q", line)
			}
		}
		for _, want := range map[bool][]string{
			true:  {"stopped by helper (failed): out of [2J memory long", "to leave the stopped round"},
			false: {"alive, lease 9m59.9s", "silent, lease 6.3s", "silent: no heartbeat for 8.7s; in 6.3s its worker counts as dead", "3 of 128 are there", "1.3s old, delivery 2", "asked to stop", "helper: a worker"},
		}[stopped] {
			if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
				t.Errorf("the status lacks %q:\n%s", want, b.String())
			}
		}
	}
}

// If the team has no store or no running worker, the command reports that.
func TestStatusOfNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "team.yaml")
	mustRun(t, "", "init", file)
	for _, form := range [][]string{nil, {"--json"}} {
		wantRefusal(t, "", append([]string{"status", file, "--set", "run.dir=the/run"}, form...), "store.url is not set", "--listen 127.0.0.1:9464", "mgrpo report", "the/run")
	}
	wantRefusal(t, "", []string{"status", file, "--set", "health.address=127.0.0.1:9464"}, "http://127.0.0.1:9464/live")
	wantRefusal(t, "", []string{"status", file, "--set", "store.url=redis://127.0.0.1:1/0"}, "connection refused")
}
