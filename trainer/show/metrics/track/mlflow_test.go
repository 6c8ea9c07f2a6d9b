package track

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// standInServer is as much of an MLflow tracking server as we use. The real one is tested by make test-tracking.
type standInServer struct {
	t    *testing.T
	url  string
	loss func(path string) bool // whether the request is served and its reply lost
	late bool                   // the next question after an experiment comes before somebody else makes it

	mu          sync.Mutex
	experiments []string // name of experiment number i+1
	runs        []*standInRun
	auth        []string
}

type standInRun struct {
	experiment, tag, status string
	params                  map[string]string
	metrics                 []string // KEY@STEP
	newest                  map[string]int64
	largest                 int // items of a request
}

func serve(t *testing.T) *standInServer {
	t.Helper()
	s := &standInServer{t: t, loss: func(string) bool { return false }}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	t.Setenv("MLFLOW_TRACKING_URI", server.URL)
	for _, name := range []string{"TOKEN", "USERNAME", "PASSWORD"} {
		t.Setenv("MLFLOW_TRACKING_"+name, "")
	}
	return s
}

func (s *standInServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.auth = append(s.auth, r.Header.Get("Authorization"))
	path := strings.TrimPrefix(r.URL.Path, "/api/2.0/mlflow/")
	var body map[string]any
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			s.t.Errorf("%s: %v", path, err)
		}
	}
	status, reply := s.reply(path, r.URL.Query().Get, body)
	if s.loss(path) {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(reply); err != nil {
		s.t.Error(err)
	}
}

func (s *standInServer) reply(path string, query func(string) string, body map[string]any) (int, any) {
	type object = map[string]any
	id := func(key string) *standInRun {
		text, _ := body["run_id"].(string)
		n, err := strconv.Atoi(text + query(key))
		if err != nil || n >= len(s.runs) {
			s.t.Fatalf("%s of run %q", path, text)
		}
		return s.runs[n]
	}
	switch path {
	case "experiments/get-by-name":
		late := s.late
		s.late = false
		if i := slices.Index(s.experiments, query("experiment_name")); i >= 0 && !late {
			return 200, object{"experiment": object{"experiment_id": strconv.Itoa(i + 1), "lifecycle_stage": "active"}}
		}
		return 404, object{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
	case "experiments/create":
		if slices.Contains(s.experiments, body["name"].(string)) {
			return 400, object{"error_code": "RESOURCE_ALREADY_EXISTS", "message": "there"}
		}
		s.experiments = append(s.experiments, body["name"].(string))
		return 200, object{"experiment_id": strconv.Itoa(len(s.experiments))}
	case "runs/search":
		for i, r := range s.runs {
			if body["filter"] == fmt.Sprintf("tags.`mgrpo.run` = '%s'", r.tag) && slices.Contains(body["experiment_ids"].([]any), any(r.experiment)) {
				return 200, object{"runs": []any{object{"info": object{"run_id": strconv.Itoa(i)}}}}
			}
		}
		return 200, object{}
	case "runs/create":
		tag := body["tags"].([]any)[0].(object)
		s.runs = append(s.runs, &standInRun{experiment: body["experiment_id"].(string), tag: tag["value"].(string), status: "RUNNING",
			params: map[string]string{}, newest: map[string]int64{}})
		return 200, object{"run": object{"info": object{"run_id": strconv.Itoa(len(s.runs) - 1)}}}
	case "runs/get":
		r := id("run_id")
		var metrics, params []any
		for key, step := range r.newest {
			metrics = append(metrics, object{"key": key, "step": strconv.FormatInt(step, 10)}) // as proto's own JSON
		}
		for key, value := range r.params {
			params = append(params, object{"key": key, "value": value})
		}
		return 200, object{"run": object{"info": object{}, "data": object{"metrics": metrics, "params": params}}}
	case "runs/update":
		id("").status = body["status"].(string)
		return 200, object{}
	case "runs/log-batch":
		r := id("")
		metrics, _ := body["metrics"].([]any)
		params, _ := body["params"].([]any)
		if len(metrics) > 1000 || len(params) > 100 {
			return 400, object{"error_code": "INVALID_PARAMETER_VALUE", "message": "too many"}
		}
		r.largest = max(r.largest, len(metrics))
		for _, p := range params {
			key, value := p.(object)["key"].(string), p.(object)["value"].(string)
			if was, there := r.params[key]; there && was != value {
				return 400, object{"error_code": "INVALID_PARAMETER_VALUE", "message": "changed"}
			}
			r.params[key] = value
		}
		for _, m := range metrics {
			key, step := m.(object)["key"].(string), int64(m.(object)["step"].(float64))
			r.metrics = append(r.metrics, fmt.Sprintf("%s@%d", key, step))
			r.newest[key] = max(r.newest[key], step)
		}
		return 200, object{}
	}
	return 404, object{}
}

// toMLflow forwards a run without waiting between attempts; said has what people are told.
func toMLflow(t *testing.T, dir string) (said string, err error) {
	t.Helper()
	var b strings.Builder
	open := mlflowOpener("agents", func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) },
		func(ctx context.Context, _ time.Duration) bool { return ctx.Err() == nil })
	_, err = Forward(t.Context(), dir, false, open)
	return b.String(), err
}

func TestMLflow(t *testing.T) {
	s, dir := serve(t), three(t)
	said, err := toMLflow(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	if said != s.url+"/#/experiments/1/runs/0\n" {
		t.Errorf("said %q", said)
	}
	r := s.runs[0]
	if want := []string{"planner/reward_mean@1", "planner/reward_mean@2", "planner/reward_mean@3"}; !slices.Equal(r.metrics, want) {
		t.Errorf("metrics %v, want %v", r.metrics, want)
	}
	if r.params["grpo.rollouts"] != "8" || r.params["grpo.convention"] != "population" || len(r.params) <= maxParams {
		t.Errorf("%d params: %v", len(r.params), r.params)
	}
	if r.status != "RUNNING" {
		t.Errorf("status %s of a run that may go on", r.status)
	}

	report(t, dir, step("planner", 3, .1), step("planner", 4, .5)) // went back to step 2
	ends(t, dir)
	text, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(strings.Replace(string(text), "steps: 30", "steps: 31", 1)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if said, err = toMLflow(t, dir); err != nil || !strings.Contains(said, "run.steps is 30 there and 31 now") {
		t.Errorf("%v, said %q", err, said)
	}
	if len(s.runs) != 1 || len(r.metrics) != 4 || r.metrics[3] != "planner/reward_mean@4" || r.status != "FINISHED" {
		t.Errorf("%d runs, %+v", len(s.runs), r)
	}
}

// TestMLflowLostReplies: whichever reply is lost, there is one experiment and one run, and every number is there once.
func TestMLflowLostReplies(t *testing.T) {
	dir := three(t)
	ends(t, dir)
	for lost := 0; ; lost++ {
		s, n := serve(t), 0
		s.loss = func(string) bool { n++; return n == lost }
		if _, err := toMLflow(t, dir); err != nil {
			t.Fatalf("request %d: %v", lost, err)
		}
		if len(s.experiments) != 1 || len(s.runs) != 1 || len(s.runs[0].metrics) != 3 || s.runs[0].status != "FINISHED" {
			t.Errorf("reply %d was lost: experiments %v, %d runs, first %+v", lost, s.experiments, len(s.runs), s.runs[0])
		}
		if n < lost {
			break
		}
	}
}

// TestMLflowRace: two commands create the experiment at the same time.
func TestMLflowRace(t *testing.T) {
	s := serve(t)
	s.experiments, s.late = []string{"agents"}, true
	if _, err := toMLflow(t, three(t)); err != nil || len(s.experiments) != 1 || len(s.runs) != 1 {
		t.Errorf("%v, experiments %v, %d runs", err, s.experiments, len(s.runs))
	}
}

func TestMLflowBatches(t *testing.T) {
	s, dir := serve(t), runDir(t)
	r := step("planner", 1, 1)
	for i := range 700 {
		r.Values[fmt.Sprintf("v%d", i)] = 1
	}
	report(t, dir, r)
	r.Step = 2
	report(t, dir, r)
	if _, err := toMLflow(t, dir); err != nil {
		t.Fatal(err)
	}
	if got := s.runs[0]; len(got.metrics) != 1402 || got.largest != maxMetrics {
		t.Errorf("%d metrics, at most %d at once", len(got.metrics), got.largest)
	}
}

func TestMLflowCredentials(t *testing.T) {
	s, dir := serve(t), three(t)
	for _, c := range []struct{ token, user, password, want string }{
		{"", "", "", ""},
		{"secret", "", "", "Bearer secret"},
		{"secret", "me", "pass", "Basic bWU6cGFzcw=="},
	} {
		s.auth = nil
		t.Setenv("MLFLOW_TRACKING_TOKEN", c.token)
		t.Setenv("MLFLOW_TRACKING_USERNAME", c.user)
		t.Setenv("MLFLOW_TRACKING_PASSWORD", c.password)
		if _, err := toMLflow(t, dir); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(s.auth, func(a string) bool { return a != c.want }) || s.auth == nil {
			t.Errorf("%q, want %q", s.auth, c.want)
		}
	}
}

// TestMLflowHostile: whatever answers, the command ends, says what came, and does not print credentials.
func TestMLflowHostile(t *testing.T) {
	deleted := `{"experiment":{"experiment_id":"1","lifecycle_stage":"deleted"}}`
	fine := `{"experiment":{"experiment_id":"1"}}`
	for name, c := range map[string]struct {
		status int
		bodies []string // of one request after the other; the last is repeated
		want   string
		calls  int
	}{
		"a page":           {200, []string{"<html>\x1b[31mhello"}, "does not come from MLflow", 1},
		"null":             {200, []string{"null"}, "does not name an experiment", 1},
		"a list":           {200, []string{"[]"}, "does not come from MLflow", 1},
		"endless":          {200, []string{strings.Repeat(" ", maxReply+1)}, "longer than", 1},
		"deep":             {200, []string{strings.Repeat("[", 1<<20)}, "does not come from MLflow", 1},
		"not MLflow":       {404, []string{"404 page not found"}, "404 page not found", 1},
		"needs a key":      {401, []string{"no"}, "MLFLOW_TRACKING_TOKEN", 1},
		"refused":          {400, []string{`{"error_code":"INVALID_PARAMETER_VALUE","message":"bad\u001b[2J name"}`}, "INVALID_PARAMETER_VALUE bad [2J name", 1},
		"broken":           {503, []string{"try later"}, "after 8 attempts: experiments/get-by-name: status 503: try later", 8},
		"always conflicts": {404, []string{`{"error_code":"RESOURCE_DOES_NOT_EXIST"}`, `{"error_code":"RESOURCE_ALREADY_EXISTS"}`}, "RESOURCE_ALREADY_EXISTS", 3},
		"deleted":          {200, []string{deleted}, "is deleted", 1},
		"no run":           {200, []string{fine, `{"runs":[{}]}`, "{}"}, "does not name a run", 3},
		"no number":        {200, []string{fine, `{"runs":[{"info":{"run_id":"r"}}]}`, "{}", `{"run":{"data":{"metrics":[{"key":"k","step":1.5}]}}}`}, "not a number", -1},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls++
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.bodies[min(calls, len(c.bodies))-1])
			}))
			defer server.Close()
			t.Setenv("MLFLOW_TRACKING_URI", strings.Replace(server.URL, "://", "://me:hidden@", 1))
			_, err := toMLflow(t, three(t))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\x1b\x00") || strings.Contains(err.Error(), "hidden") || len(err.Error()) > 1000 {
				t.Errorf("%.2000v, want %q", err, c.want)
			}
			if calls != c.calls && c.calls > 0 {
				t.Errorf("%d calls, want %d", calls, c.calls)
			}
		})
	}
}

func TestMLflowAddress(t *testing.T) {
	for _, uri := range []string{"", "databricks", "file:///tmp/mlruns", "sqlite:///x.db", "http://", "http://a b", "://"} {
		t.Setenv("MLFLOW_TRACKING_URI", uri)
		if _, err := toMLflow(t, three(t)); err == nil || !strings.Contains(err.Error(), "MLFLOW_TRACKING_URI") {
			t.Errorf("%q: %v", uri, err)
		}
	}
	t.Setenv("MLFLOW_TRACKING_URI", "http://me:hidden@127.0.0.1:1") // nobody listens
	if _, err := toMLflow(t, three(t)); err == nil || !strings.Contains(err.Error(), "after 8 attempts") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("%v", err)
	}
}

// TestMLflowInterrupted: the wait for a server that is away ends with the command.
func TestMLflowInterrupted(t *testing.T) {
	t.Setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	open := mlflowOpener("agents", t.Logf, func(context.Context, time.Duration) bool { cancel(); return false })
	if _, err := Forward(ctx, three(t), true, open); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestParamText(t *testing.T) {
	for yaml, want := range map[string]string{
		`"0.5 of it"`: "0.5 of it", "0.5": "0.5", "[a, b]": "[a, b]", strings.Repeat("é", 600): strings.Repeat("é", maxParamRunes-1) + "…",
	} {
		if got := paramText(yaml); got != want {
			t.Errorf("%s: %q, want %q", yaml, got, want)
		}
	}
}
