package learner

import (
	"context"
	"encoding/gob"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// ending is a group that calls end after a number of exchanges.
type ending struct {
	ranks.Group
	exchanges int
	// What counts as an exchange: "layers": sums of layers' gradients; "experts": rows sent to experts or back; else calls of Exchange.
	counts string
	end    func()
}

func (g *ending) AllToAll(ctx context.Context, in, out *torch.Tensor, received, sent []int64) error {
	err := g.Group.AllToAll(ctx, in, out, received, sent)
	if g.counts == "experts" {
		g.in(g.exchanges - 1)
	}
	return err
}

func (g *ending) Accumulate(ctx context.Context, sum, t *torch.Tensor) error {
	err := g.Group.Accumulate(ctx, sum, t)
	if g.counts == "layers" {
		g.in(g.exchanges - 1)
	}
	return err
}

func (g *ending) Exchange(ctx context.Context, mine []byte, most int) ([][]byte, error) {
	all, err := g.Group.Exchange(ctx, mine, most)
	if g.counts != "layers" && g.counts != "experts" {
		g.in(g.exchanges - 1)
	}
	return all, err
}

func (g *ending) in(exchanges int) {
	if g.exchanges = exchanges; exchanges == 0 {
		g.end()
	}
}

func ranksEnd(t *testing.T, g ranks.Group, dir, how, what string) {
	n, err := strconv.Atoi(filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := filepath.Join(dir, "the other rank has failed")
	ends := &ending{Group: g, end: cancel, counts: what}
	l := keeping(t, ends, 1)
	switch what {
	case "layers":
		o := l.opt
		o.CheckpointActivations = true
		l = tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, withRank(g, model.Options{Compute: torch.BFloat16})), o)
	case "experts":
		l = keepingExperts(t, ends, 1)
	}
	why := context.Canceled
	if how == "device" {
		ends.end, why = func() { l.model.Device.Close() }, torch.ErrClosed
	}
	batch := tinyBatch(t, l, 0.3)
	if err := l.Prepare(ctx, batch); err != nil {
		t.Fatal(err)
	}
	weights, m, v := make([]float32, l.State.params.Numel()), make([]float32, l.State.params.Numel()), make([]float32, l.State.params.Numel())
	if g.Rank() == 1 {
		ends.in(n)
	}
	switch what {
	case "update", "layers", "experts":
		_, err = l.Update(ctx, batch, 1e-3)
	case "demonstrations":
		_, err = l.ColdStartUpdate(ctx, batch, 1e-3)
	case "copy":
		err = l.State.Copy(ctx, weights, m, v)
	case "weights":
		err = l.State.RestoreWeights(ctx, func(int64, []float32) error { return nil })
	}
	if g.Rank() == 1 {
		if !errors.Is(err, why) {
			t.Errorf("got error %v, want %v", err, why)
		}
		for range 600 {
			if _, err := os.Stat(failed); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Error("the other rank still waits after a minute")
		return
	}
	var lost *torch.GroupError
	told := how == "device" && err != nil && strings.HasSuffix(err.Error(), "rank 1: "+why.Error())
	if !told && (!errors.As(err, &lost) || lost.TimedOut) {
		t.Errorf("got error %v, want a GroupError without a time-out", err)
	}
	if err := os.WriteFile(failed, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func ranksLoseOne(t *testing.T, g ranks.Group) {
	l := tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, withRank(g, model.Options{Compute: torch.BFloat16})), mixtureOptions(func(o *Options) { o.Group = g }))
	batch := tinyBatch(t, l, 0.3)
	if err := l.Prepare(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if g.Rank() == 2 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	_, err := l.Update(t.Context(), batch, 1e-3)
	var lost *torch.GroupError
	if !errors.As(err, &lost) || lost.TimedOut {
		t.Errorf("got error %v, want a GroupError without a time-out", err)
	}
}

// savedLearner is a saved learner, with the batch it was trained on and its weights after it was trained on the batch once more.
type savedLearner struct {
	Weights, M, V []float32
	Steps         int64
	Batch         []*Sequence
	After         []float32
}

// keeping returns a learner for ranksSave and ranksContinue.
func keeping(t *testing.T, g ranks.Group, seed uint64) *Learner {
	t.Helper()
	o := mixtureOptions(func(o *Options) { o.Group, o.MicroBatchTokens = g, 1 })
	return tinyLearnerOf(t, tinyModelIn(t, "cpu", seed, withRank(g, model.Options{Compute: torch.BFloat16})), o)
}

// keepingExperts returns a learner for ranksSave and ranksContinue, of a mixture whose experts the ranks divide.
func keepingExperts(t *testing.T, g ranks.Group, seed uint64) *Learner {
	t.Helper()
	o := mixtureOptions(func(o *Options) { o.Group, o.MicroBatchTokens, o.CheckpointActivations = g, 1, true })
	return tinyLearnerOf(t, mixtureModelIn(t, "cpu", seed, 5, withRank(g, model.Options{Compute: torch.Float32, Gathered: true})), o)
}

func ranksSave(t *testing.T, g ranks.Group, dir string, keeping func(*testing.T, ranks.Group, uint64) *Learner) {
	l := keeping(t, g, 1)
	batch := tinyBatch(t, l, 0.3)
	trained(t, l, batch)
	k := savedLearner{Steps: l.State.Steps(), Batch: batch}
	k.Weights, k.M, k.V = stateOf(t, l)
	trained(t, l, batch)
	if k.After, _, _ = stateOf(t, l); g.Rank() > 0 {
		return
	}
	file, err := os.Create(filepath.Join(dir, "kept"))
	if err == nil {
		err = errors.Join(gob.NewEncoder(file).Encode(k), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func ranksContinue(t *testing.T, g ranks.Group, dir string, keeping func(*testing.T, ranks.Group, uint64) *Learner) {
	file, err := os.Open(filepath.Join(dir, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var k savedLearner
	if err := gob.NewDecoder(file).Decode(&k); err != nil {
		t.Fatal(err)
	}
	l := keeping(t, g, 9)
	reads := func(values []float32) func(int64, []float32) error {
		if g.Rank() > 0 {
			return nil
		}
		return func(from int64, dst []float32) error { copy(dst, values[from:]); return nil }
	}
	if err := errors.Join(l.State.RestoreWeights(t.Context(), reads(k.Weights)), l.State.RestoreMoments(t.Context(), reads(k.M), reads(k.V))); err != nil {
		t.Fatal(err)
	}
	l.State.SetSteps(k.Steps)
	wantSameWeights(t, l)
	weights, m, v := stateOf(t, l)
	if g.Rank() == 0 && (!slices.Equal(weights, k.Weights) || !slices.Equal(m, k.M) || !slices.Equal(v, k.V)) {
		t.Error("the restored weights and moments differ from the saved ones")
	}
	wantHalf(t, l, weights)
	trained(t, l, k.Batch)
	if weights, _, _ = stateOf(t, l); g.Rank() == 0 {
		if d := apart(weights, k.After, 1); !(d < 1e-2) {
			t.Errorf("the weights differ by %v from the weights that the earlier ranks learned, want less than 1e-2", d)
		}
	}
}
