package track

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// standIn is a module that replaces the package wandb and records its calls. STAND_IN has JSON:
// the step at which a run continues, and the number of rows after which the stand-in dies.
const standIn = `
import json, os, sys
told = json.loads(os.environ.get("STAND_IN", "{}"))
print("the client prints this")
def say(*what):
    with open(os.environ["STAND_IN_LOG"], "a") as f:
        print(json.dumps(what), file=f)
def Histogram(np_histogram):
    return {"histogram": np_histogram}
class Run:
    disabled = os.environ.get("WANDB_MODE") == "disabled"
    offline, id, dir = False, os.environ["WANDB_RUN_ID"], "/nowhere/files"
    step = 0  # until the first row, as in the real one
    starting_step = told.get("step", 0)
    def define_metric(self, name, **more): say("define", name, more)
    def log(self, values, step, commit):
        say("log", step, values, commit)
        if step == told.get("dies", -1): os._exit(3)
    def finish(self): say("finish")
def init(config):
    say("init", config, {k: v for k, v in os.environ.items() if k.startswith("WANDB_")})
    if "fails" in told: raise RuntimeError(told["fails"])
    if "hangs" in told: import time; time.sleep(600)
    return Run()
`

// client makes Python import the stand-in, with its behaviour in told. calls returns the recorded calls.
func client(t *testing.T, told string) (calls func() [][]any) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "wandb.py"), []byte(standIn), 0o644); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	t.Setenv("PYTHONPATH", dir)
	t.Setenv("STAND_IN", told)
	t.Setenv("STAND_IN_LOG", log)
	return func() (out [][]any) {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var call []any
			if err := json.Unmarshal([]byte(line), &call); err != nil {
				t.Fatal(err)
			}
			out = append(out, call)
		}
		return out
	}
}

// logged returns the numbers of the rows that the client received, and whether finish was called.
func logged(calls [][]any) (rows []int, finished bool) {
	for _, c := range calls {
		switch c[0] {
		case "log":
			rows = append(rows, int(c[1].(float64)))
		case "finish":
			finished = true
		}
	}
	return rows, finished
}

func three(t *testing.T) string {
	t.Helper()
	dir := runDir(t)
	r := step("planner", 1, .5)
	r.Counts = map[string]map[string]int64{"calls": {"1": 4, "3": 2}}
	report(t, dir, r, step("planner", 2, .5), step("planner", 3, .5))
	return dir
}

func TestWandB(t *testing.T) {
	calls, dir := client(t, "{}"), three(t)
	t.Setenv("WANDB_NAME", "mine")
	if _, err := Forward(t.Context(), dir, false, WandB("agents", "python3")); err != nil {
		t.Fatal(err)
	}
	all := calls()
	rows, finished := logged(all)
	if !slices.Equal(rows, []int{0, 1, 2}) || !finished {
		t.Errorf("rows %v, finished %v", rows, finished)
	}
	config, env := all[0][1].(map[string]any), all[0][2].(map[string]any)
	if g := config["grpo"].(map[string]any); g["rollouts"] != 8. || g["convention"] != "population" {
		t.Errorf("configuration %v", g)
	}
	if config["agents"].(map[string]any)["planner"].(map[string]any)["role"] != "main" {
		t.Errorf("agents %v", config["agents"])
	}
	if env["WANDB_PROJECT"] != "agents" || env["WANDB_DIR"] != dir || env["WANDB_NAME"] != "mine" || env["WANDB_RUN_GROUP"] != "quickstart" || len(env["WANDB_RUN_ID"].(string)) != 16 {
		t.Errorf("environment %v", env)
	}
	first := all[3]
	values := first[2].(map[string]any)
	histogram := values["planner/calls"]
	delete(values, "planner/calls")
	if at := values["_timestamp"].(float64); at < 1.7e9 || at > 1e10 {
		t.Errorf("time %v, want seconds since 1970", at)
	}
	delete(values, "_timestamp")
	if want := map[string]any{"planner/reward_mean": .5, "step": 1.}; !reflect.DeepEqual(values, want) || first[3] != true {
		t.Errorf("logged %v, want %v at once", first, want)
	}
	if want := "map[histogram:[[4 0 2] [0.5 1.5 2.5 3.5]]]"; fmt.Sprint(histogram) != want {
		t.Errorf("histogram %v, want %s", histogram, want)
	}
}

// TestWandBGoesOn: the client determines the next row.
func TestWandBGoesOn(t *testing.T) {
	calls := client(t, `{"step": 2}`)
	if _, err := Forward(t.Context(), three(t), false, WandB("p", "python3")); err != nil {
		t.Fatal(err)
	}
	if rows, finished := logged(calls()); !slices.Equal(rows, []int{2}) || !finished {
		t.Errorf("rows %v, finished %v", rows, finished)
	}
}

// TestWandBFailures: each failure ends the command with an error and leaves no process behind.
func TestWandBFailures(t *testing.T) {
	for name, c := range map[string]struct{ told, python, mode, want string }{
		"no python":  {"{}", "no-such-python", "", "--python"},
		"not python": {"{}", "true", "", "did not begin"},
		"nonsense":   {"{}", "echo", "", "answered"},
		"refused":    {`{"fails": "no key"}`, "python3", "", "did not begin"},
		"disabled":   {"{}", "python3", "disabled", "did not begin"},
		"dies":       {`{"dies": 2}`, "python3", "", "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			client(t, c.told)
			t.Setenv("WANDB_MODE", c.mode)
			_, err := Forward(t.Context(), three(t), false, WandB("p", c.python))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestWandBInterrupted: if the client hangs while it starts, it is ended with the command.
func TestWandBInterrupted(t *testing.T) {
	calls := client(t, `{"hangs": true}`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for { // until the client hangs
			if text, _ := os.ReadFile(os.Getenv("STAND_IN_LOG")); strings.HasSuffix(string(text), "\n") {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := Forward(ctx, three(t), true, WandB("p", "python3")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if rows, _ := logged(calls()); len(rows) > 0 {
		t.Errorf("rows %v", rows)
	}
}

func TestBinned(t *testing.T) {
	for name, c := range map[string]struct {
		counts map[string]int64
		bins   int
		sum    int64
	}{
		"none":    {map[string]int64{"x": 3}, 0, 0},
		"one":     {map[string]int64{"7": 3}, 1, 3},
		"gap":     {map[string]int64{"0": 1, "511": 2}, 512, 3},
		"wide":    {map[string]int64{"0": 1, "512": 2, "100": 4}, 257, 7},
		"extreme": {map[string]int64{"-9223372036854775808": 1, "9223372036854775807": 2}, 512, 3},
	} {
		bins, edges := binned(c.counts)
		var sum int64
		for _, n := range bins {
			sum += n
		}
		if len(bins) != c.bins || sum != c.sum || c.bins > 0 && len(edges) != c.bins+1 || !slices.IsSorted(edges) {
			t.Errorf("%s: %d bins of %d, %d edges", name, len(bins), sum, len(edges))
		}
	}
}
