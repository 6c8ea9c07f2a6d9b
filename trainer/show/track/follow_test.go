package track

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
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
	calls, dir, told := standIn(t, "{}"), runDir(t), &notes{}
	cfg := followed(t, dir, "agents")
	first, err := Follow(t.Context(), cfg, told.say)
	if err != nil {
		t.Fatal(err)
	}
	metricstest.Write(t, dir, metricstest.Step("planner", 1, 0.5))
	for len(metricsOf(calls())) == 0 {
		time.Sleep(time.Millisecond)
	}
	second, err := Follow(t.Context(), cfg, told.say)
	if err != nil {
		t.Fatal(err)
	}
	metricstest.Write(t, dir, metricstest.Step("planner", 2, 0.5))
	second.Finish()
	metricstest.Write(t, dir, metricstest.Step("planner", 3, 0.5))
	first.Finish()
	if got := fmt.Sprint(metricsOf(calls())); got != "[planner/reward_mean@1 planner/reward_mean@2 planner/reward_mean@3]" || told.String() != "" {
		t.Errorf("forwarded %s; noted %q", got, told)
	}
}

// TestFollowersReadTheEnd: records of a run that ends at once are delivered. A run without records has none to deliver.
func TestFollowersReadTheEnd(t *testing.T) {
	for _, records := range []int{0, 2} {
		calls, dir := standIn(t, "{}"), runDir(t)
		f, err := Follow(t.Context(), followed(t, dir, "agents"), t.Errorf)
		if err != nil {
			t.Fatal(err)
		}
		for n := range records {
			metricstest.Write(t, dir, metricstest.Step("planner", int64(n+1), 0.5))
		}
		f.Finish()
		if got := metricsOf(calls()); len(got) != records {
			t.Errorf("forwarded %v, want %d records", got, records)
		}
	}
}

// TestFollowersExtend: if run.steps of a complete run was increased, the records of the further steps are delivered, too.
func TestFollowersExtend(t *testing.T) {
	calls, dir := standIn(t, `{"waits": true}`), threeRecords(t)
	ends(t, dir)
	f, err := Follow(t.Context(), followed(t, dir, "agents"), t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	looksAgain := func(c []any) bool { return c[0] == "waits" || c[0] == "status" && c[1] == "FINISHED" }
	for !slices.ContainsFunc(calls(), looksAgain) { // the script looks for further records; otherwise it ends the run
		time.Sleep(time.Millisecond)
	}
	metricstest.Write(t, dir, metricstest.Step("planner", 4, 0.5))
	f.Finish()
	if got := metricsOf(calls()); len(got) != 4 {
		t.Errorf("forwarded %v, want 4 records", got)
	}
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
	standIn(t, `{"fails": "status 404"}`)
	told := &notes{}
	f, err := Follow(t.Context(), followed(t, dir, "agents"), told.say)
	if err != nil {
		t.Fatal(err)
	}
	metricstest.Write(t, dir, metricstest.Step("planner", 1, 0.5))
	f.Finish()
	if !strings.Contains(told.String(), "tracking (mlflow) has ended, the run continues") {
		t.Errorf("noted %q", told)
	}
}
