package archive

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestOffers checks that an evaluated step is offered with its results and without them, newest
// first, and that workers with separate folders make equal offers.
func TestOffers(t *testing.T) {
	w := testTeam{t, t.TempDir(), false, noSyncFS{}}
	m1 := w.commit(1, w.train(1, nil))
	w.setResults(1)
	m2 := w.commit(2, w.train(2, &m1))
	var lists [2][]Manifest
	for i, name := range testNames {
		offers, skipped, err := w.checkpoints(name).Offers()
		if err != nil || len(skipped) != 0 || len(offers) != 3 {
			t.Fatalf("%v %v %v", offers, skipped, err)
		}
		lists[i] = offers
	}
	for i, want := range []struct {
		step    int64
		digest  string
		results string
	}{{2, m2.Digest, `{"next":[1,2]}`}, {1, "", `{"next":3}`}, {1, m1.Digest, `{"next":[1,2]}`}} {
		for _, list := range lists {
			o := list[i]
			if o.Step != want.step || want.digest != "" && o.Digest != want.digest || o.Digest != lists[0][i].Digest || compact(t, o.Results) != want.results {
				t.Errorf("offer %d: step %d, digest %s, results %s; want %+v", i, o.Step, o.Digest, o.Results, want)
			}
		}
	}
	if lists[0][1].Digest == m1.Digest {
		t.Error("results do not change the digest")
	}
	// The other agent's files are in another folder. Each agent's part is valid, but together they are incomplete.
	for _, name := range testNames {
		c := w.checkpoints(name)
		if _, err := verify(c.StepDir(2), []string{name}, ""); err != nil {
			t.Error(err)
		}
		_, err := Verify(c.StepDir(2))
		golden.WantError(t, err, "is missing")
		_, err = verify(c.StepDir(2), []string{"nobody"}, "")
		golden.WantError(t, err, "does not contain the agent nobody")
	}
}

func compact(t *testing.T, data json.RawMessage) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestCommitTwice checks that workers that share a folder can all commit the same manifest, and that a different one is refused.
func TestCommitTwice(t *testing.T) {
	w := testTeam{t, t.TempDir(), true, nil}
	parts := w.train(1, nil)
	first := w.commit(1, parts) // commits twice
	other := testManifest(1)
	other.Agents = slices.Clone(parts)
	other.Agents[0].CPUFeatures = "other"
	_, err := w.checkpoints("solver").Commit(other)
	golden.WantError(t, err, "already complete, with other files")
	_, err = w.checkpoints("solver").SaveAgent(1, testAgents(1)[1])
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
	if m := w.start(); m.Digest != first.Digest {
		t.Errorf("%+v", m)
	}
}

// inPlace confirms that the worker was not replaced.
func inPlace() error { return nil }

func TestGoBack(t *testing.T) {
	w := testTeam{t, t.TempDir(), false, nil}
	m := w.commit(1, w.train(1, nil))
	w.setResults(1)
	for step := int64(2); step <= 3; step++ {
		from := m
		m = w.commit(step, w.train(step, &from))
	}
	c := w.checkpoints("planner")
	offers, _, err := c.Offers()
	if err != nil || len(offers) != 4 {
		t.Fatalf("%v %v", offers, err)
	}
	replaced := errors.New("replaced")
	if err := c.GoBack(offers[2], func() error { return replaced }); !errors.Is(err, replaced) {
		t.Errorf("a replaced worker: %v", err)
	}
	if still, _, _ := c.Offers(); len(still) != len(offers) {
		t.Errorf("%d of %d offers remain", len(still), len(offers))
	}
	for range 2 { // the second worker in the folder has nothing to do
		if err := c.GoBack(offers[2], inPlace); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (out []string) {
		entries, err := os.ReadDir(c.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	if got := names(); !slices.Equal(got, []string{"step-000001", "step-000002.aside-1", "step-000003.aside-1"}) {
		t.Errorf("%v", got)
	}
	if again, _, _ := c.Offers(); len(again) != 2 || again[0].Digest != offers[2].Digest {
		t.Errorf("with results: %v", again)
	}
	if err := c.GoBack(offers[3], inPlace); err != nil {
		t.Fatal(err)
	}
	if again, _, _ := c.Offers(); len(again) != 1 || again[0].Digest != offers[3].Digest {
		t.Errorf("without results: %v", again)
	}
	// Makes the step again and goes back to the beginning, so a second folder of that name is set aside.
	if err := w.commitOne(c, 2); err != nil {
		t.Fatal(err)
	}
	if err := c.GoBack(Manifest{Step: -1}, inPlace); err != nil {
		t.Fatal(err)
	}
	if got := names(); !slices.Equal(got, []string{"step-000001.aside-1", "step-000002.aside-1", "step-000002.aside-2", "step-000003.aside-1"}) {
		t.Errorf("%v", got)
	}
	// Folders that were set aside are removed when enough newer checkpoints exist.
	for step := int64(2); step <= 5; step++ {
		if err := errors.Join(w.commitOne(c, step), c.Prune(2)); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(); !slices.Equal(got, []string{"step-000004", "step-000005"}) {
		t.Errorf("%v", got)
	}
}

// commitOne makes a step of one agent.
func (w testTeam) commitOne(c Checkpoints, step int64) error {
	files, err := c.SaveAgent(step, testAgents(step)[0])
	if err != nil {
		return err
	}
	m := testManifest(step)
	m.Agents = []AgentFiles{files}
	if _, err = c.Commit(m); err != nil {
		return err
	}
	return c.At(step).Agree()
}

// TestOtherFormats checks that files of another mgrpo version are not reported as damaged.
func TestOtherFormats(t *testing.T) {
	c := Checkpoints{Dir: t.TempDir()}
	mustSave(t, c, 1)
	writeFile(t, filepath.Join(c.StepDir(1), manifestFile), []byte(`{"run":"x","step":1}`))
	_, err := c.Verify(1)
	golden.WantError(t, err, "format 0", "an older mgrpo")
	golden.WantError(t, c.At(1).SetResults(nil), "the results of step 1", "format 0")
	golden.WantError(t, c.At(2).SetResults(nil), "the results of step 2", "has no manifest")
}
