package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/internal/durable"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestDropTrajectories checks that Trajectories.drop removes an agent's trajectories that will
// be written again, and leaves other agents' alone.
func TestDropTrajectories(t *testing.T) {
	evaluated := int64(4)
	written := Trajectories{dir: t.TempDir(), agent: "planner"}
	for _, phase := range []string{"step-3", "step-4", "step-10", "eval-0", "eval-4", "eval-6"} {
		for _, name := range []string{"planner", "researcher"} {
			if err := writeLines(filepath.Join(TrajectoriesDir(written.dir), phase, name+".jsonl"), []string{"said"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := written.drop(4, Evaluations{Evaluated: &evaluated}); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(TrajectoriesDir(written.dir), "*", "planner.jsonl"))
	var phases []string
	for _, path := range left {
		phases = append(phases, filepath.Base(filepath.Dir(path)))
	}
	if !slices.Equal(phases, []string{"eval-0", "eval-4", "step-3"}) || err != nil {
		t.Errorf("left %v, %v", phases, err)
	}
	if others, _ := filepath.Glob(filepath.Join(TrajectoriesDir(written.dir), "*", "researcher.jsonl")); len(others) != 6 {
		t.Errorf("remaining files of the other agent: %v", others)
	}
}

func TestParts(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	for _, p := range []AgentFiles{
		{Name: "a", CPUFeatures: "avx2 fma"},
		{Name: "c", Files: []durable.File{}, Endpoint: &store.Endpoint{URL: "https://host/v1", Model: "big"}},
		{Name: "b", Files: []durable.File{{Path: "chat template.jinja", Size: 12, SHA256: digest}}, Ledger: LedgerMark{Size: 7, SHA256: digest}},
	} {
		if got := filesOf(p.Name, partOf(p)); !reflect.DeepEqual(got, p) {
			t.Errorf("%+v, want %+v", got, p)
		}
	}
}

// TestHostedModelHasNoFiles checks that a manifest with files for a hosted model is refused.
func TestHostedModelHasNoFiles(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	elsewhere := AgentFiles{Name: "a", Files: []durable.File{}, Endpoint: &store.Endpoint{URL: "https://host/v1", Model: "big"}}
	if _, err := c.Commit(Manifest{Agents: []AgentFiles{elsewhere}}); err != nil {
		t.Error(err)
	}
	if m, err := c.Verify(0); err != nil || *m.Agents[0].Endpoint != *elsewhere.Endpoint {
		t.Errorf("%+v, %v", m, err)
	}
	elsewhere.Files = append(elsewhere.Files, durable.File{Path: "x", SHA256: strings.Repeat("ab", 32)})
	if _, err := c.Commit(Manifest{Step: 1, Agents: []AgentFiles{elsewhere}}); err == nil || !strings.Contains(err.Error(), "was hosted at") {
		t.Error(err)
	}
}

// TestManifestsAreCompared checks that workers with different manifests of a version get an
// error when they report the manifest, also if a worker has replaced one that had reported it.
func TestManifestsAreCompared(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	worker := func(m *store.Member, manifest string) *Archive {
		dir := t.TempDir()
		a := New(Options{Dir: dir, CheckpointsDir: CheckpointsDir(dir), Agent: m.Agent(), Team: testNames}, m, nil)
		if _, err := a.checkpoints.Commit(Manifest{Run: manifest, Step: 2, Agents: []AgentFiles{{Name: m.Agent()}}}); err != nil {
			t.Fatal(err)
		}
		return a
	}
	request := store.JoinRequest{Agents: testNames, Offers: []store.Offer{{Version: store.FromStart}}}
	var g sync.WaitGroup
	members := map[string]*store.Member{}
	for _, name := range request.Agents {
		m, err := s.Join(t.Context(), name, request, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Leave(t.Context())
		members[name] = m
	}
	isConflict := func(err error) bool {
		var conflict *store.ConflictError
		return errors.As(err, &conflict) && strings.Contains(err.Error(), "of version 2")
	}
	for _, name := range request.Agents {
		a := worker(members[name], name) // each has its own
		g.Go(func() {
			if err := a.agreement.complete(t.Context(), 2); !isConflict(err) {
				t.Errorf("%s: different manifests: %v", a.opt.Agent, err)
			}
		})
	}
	g.Wait()
	successor := worker(members["planner"], "another")
	if err := successor.agreement.confirm(t.Context(), 2); err == nil || !errors.As(err, new(*store.ConflictError)) {
		t.Errorf("a manifest that differs from the previous worker's: %v", err)
	}
}

// TestLostGPUIsForgotten checks that a GPU was not lost twice in a row if it worked until a
// checkpoint between two losses at the same version.
func TestLostGPUIsForgotten(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m, err := s.Join(t.Context(), "a", store.JoinRequest{Agents: []string{"a"}, Offers: []store.Offer{{Version: store.FromStart}}}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave(t.Context())
	dir := t.TempDir()
	lost := func(want bool) {
		t.Helper()
		if again, err := RecordLostGPU(dir, "a", 3); again != want || err != nil {
			t.Errorf("again: %v, %v; want %v", again, err, want)
		}
	}
	lost(false)
	lost(true)
	a := New(Options{Dir: dir, CheckpointsDir: CheckpointsDir(dir), Agent: "a", Team: []string{"a"}, Keep: 1, Observer: metrics.Observers{}, Manifest: testManifest,
		Endpoint: &store.Endpoint{URL: "https://host/v1", Model: "big"}}, m, nil)
	if err := a.save(t.Context(), 4, AgentState{}, LedgerMark{}, Evaluations{}); err != nil {
		t.Fatal(err)
	}
	lost(false)
}

// TestOtherEvaluations: after a change of the held-out questions or of the settings, the best version is chosen anew.
func TestOtherEvaluations(t *testing.T) {
	for _, c := range []struct {
		before, now, want string
		anew              bool
	}{
		{"", "a", `{"held_out":"a","evaluated":4,"best":{"version":2,"accuracy":0.5}}`, false}, // a checkpoint of an older mgrpo
		{"a", "a", `{"held_out":"a","evaluated":4,"best":{"version":2,"accuracy":0.5}}`, false},
		{"a", "b", `{"held_out":"b"}`, true},
		{"a", "", `{"held_out":"a","evaluated":4,"best":{"version":2,"accuracy":0.5}}`, false}, // an evaluation apart from the run
	} {
		var seen notes
		dir := t.TempDir()
		a := New(Options{Dir: dir, CheckpointsDir: CheckpointsDir(dir), Agent: "a", HeldOutDigest: c.now, Announce: true, Observer: &seen}, nil, hostedParameters{})
		results := `{"evaluated":4,"best":{"version":2,"accuracy":0.5}}`
		if c.before != "" {
			results = `{"held_out":"` + c.before + `",` + results[1:]
		}
		if err := a.Restore(t.Context(), Manifest{Step: 4, Results: json.RawMessage(results)}); err != nil {
			t.Fatal(err)
		}
		if got := string(a.Evaluations().encode()); got != c.want || strings.Contains(fmt.Sprint(seen), "version 2 (accuracy 0.500)") != c.anew {
			t.Errorf("%q, %q: %s; notes %v", c.before, c.now, got, seen)
		}
	}
}

// notes is an observer that keeps the notes.
type notes []string

func (n *notes) Note(note metrics.Note)  { *n = append(*n, note.Text) }
func (*notes) Report(metrics.Record)     {}
func (*notes) Progress(metrics.Progress) {}

// TestReplacedWhileLoading checks that a worker that is replaced while it loads its model does not change its successor's ledger.
func TestReplacedWhileLoading(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dir := t.TempDir()
	request := store.JoinRequest{Agents: []string{"a"}, Offers: []store.Offer{{Version: store.FromStart}}}
	open := func() (*store.Member, *Archive) {
		m, err := s.Join(t.Context(), "a", request, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		return m, New(Options{Dir: dir, CheckpointsDir: CheckpointsDir(dir), Agent: "a", Team: []string{"a"}, Endpoint: &store.Endpoint{URL: "https://host/v1", Model: "big"}}, m, hostedParameters{})
	}
	before, late := open()
	if err := before.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, successor := open()
	defer m.Leave(t.Context())
	if err := errors.Join(successor.Begin(t.Context(), nil), successor.AppendLedger(testLine(0))); err != nil {
		t.Fatal(err)
	}
	if err := late.Begin(t.Context(), nil); !store.EndsRoundOnly(err) {
		t.Errorf("the replaced worker began: %v", err)
	}
	if err := errors.Join(successor.AppendLedger(testLine(1)), successor.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(ledgerPath(CheckpointsOf(dir).Ledgers, "a"))
	if lines := bytes.Count(data, []byte("\n")); err != nil || lines != 2 {
		t.Errorf("the ledger has %d lines, %v", lines, err)
	}
}

// hostedParameters are the parameters of a hosted model.
type hostedParameters struct{ Parameters }

func (hostedParameters) Trains() bool { return false }

// TestAgreedIsNotBegunAnew checks that a worker with a checkpoint may start the run from the
// beginning if others have none, but not if all workers had it.
func TestAgreedIsNotBegunAnew(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	afresh := func() bool {
		points, _, err := c.Offers()
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(StoreOffers(points, "2026-01-01"), func(o store.Offer) bool { return o.Version == store.FromStart })
	}
	for _, step := range []int64{5, 10} {
		if !afresh() {
			t.Errorf("before step %d the run cannot start from the beginning", step)
		}
		if _, err := c.Commit(Manifest{Run: "r", Step: step, Agents: []AgentFiles{{Name: "a"}}}); err != nil {
			t.Fatal(err)
		}
		if step == 10 {
			if err := os.RemoveAll(c.StepDir(5)); err != nil {
				t.Fatal(err)
			}
		}
		if !afresh() {
			t.Errorf("the others may not have step %d, but the run cannot start from the beginning", step)
		}
	}
	for range 2 {
		if err := c.At(10).Agree(); err != nil {
			t.Fatal(err)
		}
	}
	if afresh() {
		t.Error("a run can start from the beginning although all its workers had a checkpoint")
	}
	points := make([]Manifest, 3*maxStoreOffers)
	if n := len(StoreOffers(points, "")); n > maxStoreOffers+1 {
		t.Errorf("%d states are offered, which exceeds the limit", n)
	}
}
