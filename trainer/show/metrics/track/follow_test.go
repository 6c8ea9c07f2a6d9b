package track

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mgrpo/mgrpo/trainer/config"
)

// notes keeps messages to the user.
type notes struct {
	mu   sync.Mutex
	said []string
}

func (n *notes) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.said, "\n")
}

func followed(t *testing.T, dir, mlflow string) *config.Config {
	t.Helper()
	cfg, err := config.Load(filepath.Join(dir, "config.yaml"), []string{"run.dir=" + dir, "tracking.mlflow=" + mlflow})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestFollowers: the configured tracker gets records while the run writes them, and the last
// ones at its end. If two workers share the run's folder, only one forwards.
func TestFollowers(t *testing.T) {
	calls, dir, told := serve(t, "{}"), runDir(t), &notes{}
	cfg := followed(t, dir, "agents")
	first, err := Follow(t.Context(), cfg, told.say)
	if err != nil {
		t.Fatal(err)
	}
	report(t, dir, step("planner", 1, 0.5))
	for {
		if _, err := os.Stat(os.Getenv("STAND_IN_LOG")); err == nil {
			break // the tracker got the first record
		}
		time.Sleep(time.Millisecond)
	}
	second, err := Follow(t.Context(), cfg, told.say)
	if err != nil {
		t.Fatal(err)
	}
	report(t, dir, step("planner", 2, 0.5))
	second.Finish()
	first.Finish()
	if got := fmt.Sprint(metricsOf(calls())); got != "[planner/reward_mean@1 planner/reward_mean@2]" || told.String() != "" {
		t.Errorf("forwarded %s; said %q", got, told)
	}
}

// kept is a tracker that keeps the steps of its rows.
type kept struct{ steps []int64 }

func (k *kept) Log(_ context.Context, rows []Row) error {
	for _, r := range rows {
		k.steps = append(k.steps, r.Step)
	}
	return nil
}

func (k *kept) Close(context.Context, bool) error { return nil }

// TestFollowersReadTheEnd: records that were written while a follower waited are delivered when the run ends.
func TestFollowersReadTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, to, f := runDir(t), &kept{}, &Followers{ended: make(chan struct{})}
		f.start(t.Context(), dir, "kept", func(context.Context, Run) (Tracker, error) { return to, nil }, t.Errorf)
		report(t, dir, step("planner", 1, 0.5))
		time.Sleep(2 * pause)
		synctest.Wait() // the follower has read the first record and waits
		report(t, dir, step("planner", 2, 0.5))
		f.Finish()
		if !slices.Equal(to.steps, []int64{1, 2}) {
			t.Errorf("the tracker got the steps %v", to.steps)
		}
	})
}

// TestFollowersRefuse: a tracker that cannot work is an error before the run begins. A tracker that fails later is only noted.
func TestFollowersRefuse(t *testing.T) {
	t.Setenv("MLFLOW_TRACKING_URI", "")
	dir := runDir(t)
	if _, err := Follow(t.Context(), followed(t, dir, "agents"), t.Errorf); err == nil || !strings.Contains(err.Error(), "tracking.mlflow: no server") {
		t.Error(err)
	}
	cfg := followed(t, dir, "")
	cfg.Tracking.WandB = "agents"
	cfg.Tracking.Python = filepath.Join(dir, "none")
	if _, err := Follow(t.Context(), cfg, t.Errorf); err == nil || !strings.Contains(err.Error(), "tracking.python: ") {
		t.Error(err)
	}
	serve(t, `{"fails": "status 404"}`)
	told := &notes{}
	f, err := Follow(t.Context(), followed(t, dir, "agents"), told.say)
	if err != nil {
		t.Fatal(err)
	}
	report(t, dir, step("planner", 1, 0.5))
	f.Finish()
	if !strings.Contains(told.String(), "tracking (mlflow) has ended, the run continues") {
		t.Errorf("said %q", told)
	}
}
