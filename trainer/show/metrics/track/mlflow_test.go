package track

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mlflowStandIn is a module that replaces the package mlflow. It keeps runs in a file and
// records its calls. `make test-tracking` tests the real package.
const mlflowStandIn = `
import json, os, sys
from types import SimpleNamespace as Object
entities = sys.modules["mlflow.entities"] = sys.modules["mlflow"]
told = json.loads(os.environ.get("STAND_IN", "{}"))
kept = os.environ["STAND_IN_LOG"] + ".runs"
runs = json.load(open(kept)) if os.path.exists(kept) else []
def say(*what):
    with open(os.environ["STAND_IN_LOG"], "a") as f:
        print(json.dumps(what), file=f)
def Metric(*fields): return fields
def Param(*fields): return fields
def get_tracking_uri(): return os.environ["MLFLOW_TRACKING_URI"]
def set_experiment(name):
    if "fails" in told: raise RuntimeError(told["fails"])
    say("experiment", name, get_tracking_uri())
    return Object(experiment_id="1")
def run(of): return Object(info=Object(run_id=of["id"]), data=Object(params=of["params"], tags=of["tags"]))
class MlflowClient:
    def keep(self, call, *what):
        json.dump(runs, open(kept, "w"))
        say(call, *what)
    def search_runs(self, experiments, text, max_results):
        return [run(r) for r in runs if text == "tags.` + "`mgrpo.run`" + ` = '" + r["tags"]["mgrpo.run"] + "'"]
    def update_run(self, id, status): say("status", status)
    def create_run(self, experiment, start_time, tags, run_name):
        runs.append({"id": str(len(runs)), "params": {}, "tags": tags})
        self.keep("create", run_name, start_time)
        return run(runs[-1])
    def log_batch(self, id, metrics=(), params=()):
        if params: runs[int(id)]["params"].update(params)
        elif metrics: self.keep("log", [f"{name}@{step}" for name, _, _, step in metrics])
        if metrics and "dies" in told: os._exit(3)
    def set_tag(self, id, key, value):
        runs[int(id)]["tags"][key] = str(value)
        self.keep("tag", key, value)
    def set_terminated(self, id, status): say("status", status)
`

// serve makes Python import the stand-in as a server with an address. calls returns the recorded calls.
func serve(t *testing.T, told string) (calls func() [][]any) {
	t.Helper()
	calls = client(t, told)
	if err := os.WriteFile(filepath.Join(os.Getenv("PYTHONPATH"), "mlflow.py"), []byte(mlflowStandIn), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1/")
	return calls
}

// metricsOf returns the numbers that the stand-in received, as NAME@STEP.
func metricsOf(calls [][]any) (all []string) {
	for _, c := range calls {
		if c[0] == "log" {
			for _, m := range c[1].([]any) {
				all = append(all, m.(string))
			}
		}
	}
	return all
}

func TestMLflow(t *testing.T) {
	calls, dir := serve(t, "{}"), three(t)
	forward := func() {
		t.Helper()
		if _, err := Forward(t.Context(), dir, false, MLflow("http://me:hidden@127.0.0.1:2/agents", "python3")); err != nil {
			t.Fatal(err)
		}
	}
	forward()
	first := calls()
	if want := []string{"planner/reward_mean@1", "planner/reward_mean@2", "planner/reward_mean@3"}; !slices.Equal(metricsOf(first), want) {
		t.Errorf("metrics %v, want %v", metricsOf(first), want)
	}
	if fmt.Sprint(first[0]) != "[experiment agents http://me:hidden@127.0.0.1:2]" || fmt.Sprint(first[1][:2]) != "[create quickstart]" {
		t.Errorf("begun with %v", first[:2])
	}
	if last := fmt.Sprint(first[len(first)-1]); last != "[tag mgrpo.rows 3]" {
		t.Errorf("ended with %s: the run may be continued", last)
	}
	report(t, dir, step("planner", 3, .1), step("planner", 4, .5)) // the run went back to step 2
	ends(t, dir)
	forward()
	then := fmt.Sprint(calls()[len(first):])
	if want := "[[experiment agents http://me:hidden@127.0.0.1:2] [status RUNNING] [log [planner/reward_mean@4]] [tag mgrpo.rows 4] [status FINISHED]]"; then != want {
		t.Errorf("then %s, want %s", then, want)
	}
}

// TestMLflowFailures: each failure ends the command with an error.
func TestMLflowFailures(t *testing.T) {
	for name, c := range map[string]struct{ told, python, want string }{
		"no python": {"{}", "no-such-python", "--python"},
		"refused":   {`{"fails": "status 401"}`, "python3", "did not begin"},
		"dies":      {`{"dies": true}`, "python3", "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			serve(t, c.told)
			if _, err := Forward(t.Context(), three(t), false, MLflow("agents", c.python)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestMLflowAddress(t *testing.T) {
	for _, uri := range []string{"", "databricks", "file:///tmp/mlruns", "sqlite:///x.db", "http://", "http://a b", "://"} {
		t.Setenv("MLFLOW_TRACKING_URI", uri)
		if _, err := Forward(t.Context(), three(t), false, MLflow("agents", "python3")); err == nil || !strings.Contains(err.Error(), "MLFLOW_TRACKING_URI") {
			t.Errorf("%q: %v", uri, err)
		}
	}
}

func TestPlain(t *testing.T) {
	for yaml, want := range map[string]string{`"0.5 of it"`: "0.5 of it", "0.5": "0.5", "[a, b]": "[a, b]"} {
		if got := plain(yaml); got != want {
			t.Errorf("%s: %q, want %q", yaml, got, want)
		}
	}
}
