package endtoend

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/internal/durable"
)

// refusedAs fails the test unless err names `what` and this process.
func refusedAs(t *testing.T, err error, what string) {
	t.Helper()
	host, _ := os.Hostname()
	var held *durable.HeldError
	if !errors.As(err, &held) || !strings.HasPrefix(err.Error(), what+" ") || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())+" on "+host) {
		t.Errorf("want an error that names %s and this process, got %v", what, err)
	}
}

// TestSecondRunInFolderIsRefused checks that a running run's folder cannot be used by another
// run, or by a worker with a Redis. The first run ends like an undisturbed one.
func TestSecondRunInFolderIsRefused(t *testing.T) {
	wholeDir, _ := whole(t)
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, "run.steps=4")
	var once sync.Once
	seen.on = func(_, phase string, _ int) {
		if phase != "step-1" {
			return
		}
		once.Do(func() {
			for _, sets := range [][]string{{"run.steps=4"}, {"run.steps=4", "store.url=redis://127.0.0.1:1"}} {
				other := &recorder{}
				refusedAs(t, trainer.Train(t.Context(), load(t, dir, sets...), trainer.TrainOptions{Resume: true, Observer: other}), "run.dir")
				if len(other.Records) > 0 {
					t.Errorf("the other run reported %d records", len(other.Records))
				}
			}
		})
	}
	if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen}); err != nil {
		t.Fatal(err)
	}
	sameWeights(t, digests(t, dir, 4), digests(t, wholeDir, 4))
	if _, err := os.Stat(dir + "/lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock's folder still exists: %v", err)
	}
}

// TestSecondEvaluationInFolderIsRefused checks that two processes cannot make the same
// evaluation in one folder. An evaluation during a training is allowed.
func TestSecondEvaluationInFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	cfg := load(t, dir, append(noColdStart, "run.steps=1", "run.checkpoint_every=1")...)
	mustTrain(t, cfg, trainer.TrainOptions{})
	train, err := durable.AcquireLock(t.Context(), dir, durable.Exclusive, "train", func(string) {}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer train.Release()
	e, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := durable.AcquireLock(t.Context(), e.Dir, durable.Exclusive, "eval", func(string) {}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	_, err = trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{})
	refusedAs(t, err, "the folder of the evaluation")
}
