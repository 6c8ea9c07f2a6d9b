package track

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
)

func TestWandB(t *testing.T) {
	t.Setenv("WANDB_NAME", "mine")
	dir := threeRecords(t)
	all, _ := forward(t, dir)
	config, env := all[0][1].(map[string]any), all[0][2].(map[string]any)
	if g := config["grpo"].(map[string]any); g["rollouts"] != 8. || g["convention"] != "population" {
		t.Errorf("configuration %v", g)
	}
	if config["agents"].(map[string]any)["planner"].(map[string]any)["role"] != "main" {
		t.Errorf("agents %v", config["agents"])
	}
	if env["WANDB_PROJECT"] != "agents" || env["WANDB_DIR"] != dir || env["WANDB_NAME"] != "mine" || env["WANDB_RUN_GROUP"] != "quickstart" {
		t.Errorf("environment %v", env)
	}
	first := all[3]
	values := first[2].(map[string]any)
	if at := values["_timestamp"].(float64); at < 1.7e9 || at > 1e10 {
		t.Errorf("time %v, want seconds since 1970", at)
	}
	delete(values, "_timestamp")
	histogram := []any{[]any{4., 0., 2.}, []any{.5, 1.5, 2.5, 3.5}}
	if want := map[string]any{"planner/reward_mean": .5, "planner/calls": histogram, "step": 1.}; !reflect.DeepEqual(values, want) || first[3] != true {
		t.Errorf("logged %v, want %v at once", first, want)
	}
}

// TestWandBGoesOn: the client determines the next row.
func TestWandBGoesOn(t *testing.T) {
	for next, want := range map[int]string{2: "2: 3 planner/reward_mean=0.5\n", 3: "", 7: ""} {
		calls := standIn(t, fmt.Sprintf(`{"step": %d}`, next))
		if _, err := Forward(t.Context(), threeRecords(t), false, wandb); err != nil {
			t.Fatal(err)
		}
		if all := calls(); rows(all) != want || all[len(all)-1][0] != "finish" {
			t.Errorf("from row %d: %v", next, all)
		}
	}
}

// TestFailures: each failure ends the command with an error.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct{ tracker, behaviour, python, mode, want string }{
		"no python":      {"wandb", "{}", "no-such-python", "", "--python"},
		"not python":     {"wandb", "{}", "true", "", "answered"},
		"nonsense":       {"wandb", "{}", "echo", "", "answered"},
		"refused":        {"wandb", `{"fails": "no key"}`, "python3", "", "the lines above give the reason"},
		"disabled":       {"wandb", "{}", "python3", "disabled", "wandb: WANDB_MODE=disabled"},
		"dies":           {"wandb", `{"dies": 2}`, "python3", "", "run the same command again"},
		"no package":     {"tensorboard", "{}", "python3", "", "has no package tensorboard"},
		"MLflow refused": {"mlflow", `{"fails": "status 401"}`, "python3", "", "the lines above give the reason"},
		"MLflow dies":    {"mlflow", `{"dies": true}`, "python3", "", "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			standIn(t, c.behaviour)
			t.Setenv("WANDB_MODE", c.mode)
			_, err := Forward(t.Context(), threeRecords(t), false, Tracker{c.tracker, "agents", c.python})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestInterrupted: if the client hangs while it begins the run, it is ended with the command.
func TestInterrupted(t *testing.T) {
	calls := standIn(t, `{"hangs": true}`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for len(calls()) == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := Forward(ctx, threeRecords(t), true, wandb); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if got := rows(calls()); got != "" {
		t.Errorf("rows %v", got)
	}
}

// metricsOf returns the numbers that the stand-in for MLflow received, as NAME@STEP.
func metricsOf(calls [][]any) (all []any) {
	for _, c := range calls {
		if c[0] == "log" {
			all = append(all, c[1].([]any)...)
		}
	}
	return all
}

func TestMLflow(t *testing.T) {
	calls, dir := standIn(t, "{}"), threeRecords(t)
	forward := func() {
		t.Helper()
		if _, err := Forward(t.Context(), dir, false, Tracker{"mlflow", "http://me:hidden@127.0.0.1:2/agents", "python3"}); err != nil {
			t.Fatal(err)
		}
	}
	forward()
	first := calls()
	if got := fmt.Sprint(metricsOf(first)); got != "[planner/reward_mean@1 planner/reward_mean@2 planner/reward_mean@3]" {
		t.Errorf("metrics %v", got)
	}
	if fmt.Sprint(first[0]) != "[experiment agents http://me:hidden@127.0.0.1:2]" || fmt.Sprint(first[1][:2]) != "[create quickstart]" {
		t.Errorf("begun with %v", first[:2])
	}
	if last := fmt.Sprint(first[len(first)-1]); last != "[tag mgrpo.rows 3]" {
		t.Errorf("ended with %s: the run may be continued", last)
	}
	metricstest.Write(t, dir, metricstest.Step("planner", 3, .1), metricstest.Step("planner", 4, .5)) // the run went back to step 2
	ends(t, dir)
	forward()
	then := calls()[len(first):]
	if want := "[[experiment agents http://me:hidden@127.0.0.1:2] [status RUNNING] [log [planner/reward_mean@4]] [tag mgrpo.rows 4] [status FINISHED]]"; fmt.Sprint(then) != want {
		t.Errorf("then %s, want %s", then, want)
	}
	metricstest.Write(t, dir, metricstest.Step("planner", 5, .5)) // run.steps was increased
	forward()
	if all := calls(); fmt.Sprint(all[len(all)-1]) != "[tag mgrpo.rows 5]" {
		t.Errorf("an extended run ended with %v", all[len(all)-1])
	}
	texts, err := os.ReadFile(os.Getenv("STAND_IN_LOG") + ".runs")
	for _, want := range []string{`"run.name": "quickstart"`, `"grpo.rollouts": "8"`, `"agents.planner.role": "main"`} {
		if !strings.Contains(string(texts), want) || strings.Contains(string(texts), `"agents":`) {
			t.Errorf("parameters %s, %v, want %s", texts, err, want)
		}
	}
}

func TestMLflowAddress(t *testing.T) {
	for _, uri := range []string{"", "databricks", "file:///tmp/mlruns", "sqlite:///x.db", "http://", "http://a b", "://"} {
		t.Setenv("MLFLOW_TRACKING_URI", uri)
		if _, err := Forward(t.Context(), threeRecords(t), false, Tracker{"mlflow", "agents", "python3"}); err == nil || !strings.Contains(err.Error(), "MLFLOW_TRACKING_URI") {
			t.Errorf("%q: %v", uri, err)
		}
	}
}
