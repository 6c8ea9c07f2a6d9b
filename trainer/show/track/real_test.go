package track

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
)

// root is the folder of the repository.
const root = "../../.."

// packages makes Python import the real packages.
func packages(t *testing.T) {
	t.Helper()
	site := os.Getenv("MGRPO_TRACKING")
	if site == "" {
		t.Skip("make test-tracking runs it")
	}
	t.Setenv("PYTHONPATH", site)
	t.Setenv("PYTHONSAFEPATH", "1") // nothing is imported from the current folder
}

// TestReal trains a tiny team and forwards it during the run and after a resume. Then it compares metrics.jsonl with the files of
// W&B's client, with the answers of an MLflow server and with TensorBoard's reader. make test-tracking sets MGRPO_TRACKING to the
// folder of their packages.
func TestReal(t *testing.T) {
	packages(t)
	t.Setenv("WANDB_MODE", "offline")
	t.Setenv("MLFLOW_TRACKING_URI", startMLflow(t))
	dir := filepath.Join(t.TempDir(), "run")
	followed := mgrpo(t, "track", dir, "--wandb", "agents", "--follow")
	if err := followed.Start(); err != nil {
		t.Fatal(err)
	}
	train(t, dir, "run.steps=2")
	if err := followed.Wait(); err != nil { // the follower ends with the run
		t.Fatal(err)
	}
	forward := func(to ...string) {
		t.Helper()
		if err := mgrpo(t, append([]string{"track", dir}, to...)...).Run(); err != nil {
			t.Fatal(err)
		}
	}
	board := t.TempDir()
	forward("--tensorboard", board)
	forward("--mlflow", "agents")
	live := offline(t, dir)
	same(t, "W&B, live", live, dir)
	train(t, dir, "run.steps=3", "--resume")
	for range 2 {
		forward("--mlflow", "agents")
		forward("--tensorboard", board)
	}
	if err := mgrpo(t, "track", dir, "--wandb", "agents").Run(); err == nil {
		t.Error("there is a second offline folder, which wandb sync would append to the first")
	}
	if folders, err := filepath.Glob(filepath.Join(dir, "wandb", "offline-run-*")); err != nil || len(folders) != 1 {
		t.Errorf("offline run folders %v, %v", folders, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "wandb")); err != nil {
		t.Fatal(err)
	}
	forward("--wandb", "agents")
	again, server := offline(t, dir), readBack(t, "mlflow", os.Getenv("MLFLOW_TRACKING_URI"), "agents")
	same(t, "W&B, resumed", again, dir)
	same(t, "MLflow", server, dir)
	same(t, "TensorBoard", readBack(t, "tensorboard", filepath.Join(board, "run")), dir)
	if live.ID != again.ID || live.ID != server.ID || server.Status != "FINISHED" {
		t.Errorf("ids %s, %s and %s; %s", live.ID, again.ID, server.ID, server.Status)
	}
	if g := again.Config["grpo"].(map[string]any); g["rollouts"] != 8. || server.Config["grpo.rollouts"] != "8" {
		t.Errorf("configurations %v and %v", g, server.Config)
	}
	for i, row := range again.Rows {
		if row["_step"] != float64(i) {
			t.Errorf("row %d is %v there", i, row["_step"])
		}
	}
}

// mgrpo returns a command that runs the program with arguments.
func mgrpo(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "mgrpo"), args...)
	cmd.Stderr = os.Stderr
	return cmd
}

// train makes the steps of a tiny run. Agents without a cold start may learn nothing, which the program reports as a failure.
func train(t *testing.T, dir string, more ...string) {
	t.Helper()
	small, err := os.ReadFile(filepath.Join(root, ".ci", "quickstart-small"))
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"train", filepath.Join(root, "examples/quickstart/team.yaml"), "--set", "run.dir=" + dir}, strings.Fields(string(small))...)
	for _, m := range more {
		if strings.Contains(m, "=") {
			args = append(args, "--set")
		}
		args = append(args, m)
	}
	cmd := mgrpo(t, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil && !strings.Contains(errs.String(), "nothing was trained") {
		t.Fatalf("%v: %s", err, &errs)
	}
}

// readback is the output of readback.py.
type readback struct {
	ID, Status string
	Config     map[string]any
	Rows       []map[string]any
	Points     [][3]any // name, step, value
}

func readBack(t *testing.T, args ...string) (out readback) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", append([]string{"testdata/readback.py"}, args...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// offline reads the offline run folder that W&B's client wrote.
func offline(t *testing.T, dir string) readback {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(dir, "wandb", "offline-run-*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("offline run folders in %s: %v, %v", dir, folders, err)
	}
	return readBack(t, "wandb", folders[0])
}

// same checks that the tracker has every number of metrics.jsonl once, and no others. Only W&B has points for histograms.
func same(t *testing.T, name string, got readback, dir string) {
	t.Helper()
	log, err := metrics.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{}
	for _, l := range log.Records {
		prefix := l.Agent + "/"
		if l.Kind != metrics.KindStep {
			prefix += l.Kind + "/"
		}
		for name, v := range l.Values {
			want[fmt.Sprint(prefix, name, "@", l.Step)] = v
		}
		for _, of := range metrics.ByTool {
			for tool, n := range l.Counts[of] {
				want[fmt.Sprint(prefix, of, "/", tool, "@", l.Step)] = float64(n)
			}
		}
	}
	if len(want) < 100 || want["planner/trajectories@1"] == 0 || len(want) != len(numbers(t, name, got, want)) {
		t.Errorf("%s: %d numbers in the file, %d in the tracker", name, len(want), len(numbers(t, name, got, want)))
	}
}

// numbers returns a tracker's numbers by name and step.
func numbers(t *testing.T, name string, got readback, want map[string]float64) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, p := range got.Points {
		v, isNumber := p[2].(float64)
		if !isNumber {
			continue
		}
		at := fmt.Sprint(p[0], "@", p[1])
		if _, twice := out[at]; twice {
			t.Errorf("%s has %s twice", name, at)
		}
		w, ok := want[at]
		if name == "TensorBoard" {
			w = float64(float32(w))
		}
		if !ok || w != v {
			t.Errorf("%s has %s = %v, want %v (there: %v)", name, at, v, w, ok)
		}
		out[at] = v
	}
	return out
}

// TestRealTensorBoard: a run that is forwarded again has each of its rows once.
func TestRealTensorBoard(t *testing.T) {
	packages(t)
	dir, board := threeRecords(t), t.TempDir()
	for range 2 {
		if _, err := Forward(t.Context(), dir, false, Tracker{"tensorboard", board, "python3"}); err != nil {
			t.Fatal(err)
		}
		metricstest.Write(t, dir, metricstest.Step("solver", 4, .25))
	}
	got := readBack(t, "tensorboard", filepath.Join(board, filepath.Base(dir))).Points
	if want := "[[planner/reward_mean 1 0.5] [planner/reward_mean 2 0.5] [planner/reward_mean 3 0.5] " +
		"[planner/calls 1 [[0.5 1.5 2.5 3.5] [0 4 0 2]]] [solver/reward_mean 4 0.25]]"; fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// startMLflow starts a tracking server with its own database and returns its address.
func startMLflow(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	dir := t.TempDir()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port, "--workers", "1",
		"--backend-store-uri", "sqlite:///"+dir+"/mlflow.db", "--artifacts-destination", dir)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the server starts workers
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	for {
		if reply, err := http.Get("http://" + address + "/health"); err == nil {
			_ = reply.Body.Close()
			if reply.StatusCode == http.StatusOK {
				return "http://" + address
			}
		}
		time.Sleep(50 * time.Millisecond) // go test's time-out limits this loop
	}
}

// TestRealOnline: W&B's client uploads a run that it wrote offline and continues it online. Every row arrives exactly once.
func TestRealOnline(t *testing.T) {
	packages(t)
	s := &wandbServer{history: map[string][]string{}}
	server := httptest.NewServer(s)
	defer server.Close()
	t.Setenv("WANDB_BASE_URL", server.URL)
	t.Setenv("WANDB_API_KEY", strings.Repeat("0123456789", 4))
	dir := threeRecords(t)
	forward := func() {
		t.Helper()
		if _, err := Forward(t.Context(), dir, false, wandb); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("WANDB_MODE", "offline") // for the first part, which wandb sync uploads
	forward()
	t.Setenv("WANDB_MODE", "online")
	folders, err := filepath.Glob(filepath.Join(dir, "wandb", "offline-run-*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("offline run folders %v, %v", folders, err)
	}
	upload := exec.CommandContext(t.Context(), "python3", "-m", "wandb", "sync", folders[0])
	upload.Dir = dir // the command writes logs to its folder
	if out, err := upload.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	metricstest.Write(t, dir, metricstest.Step("planner", 3, .1), metricstest.Step("planner", 4, .75)) // the run went back to step 2
	forward()
	forward()
	if len(s.history) != 1 || s.repeated {
		t.Fatalf("%d runs, repeated lines: %v", len(s.history), s.repeated)
	}
	for _, lines := range s.history {
		var got []string
		for _, line := range lines {
			var row map[string]any
			if err := json.Unmarshal([]byte(line), &row); err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(row["_step"], row["step"], row["planner/reward_mean"]))
		}
		if want := []string{"0 1 0.5", "1 2 0.5", "2 3 0.5", "3 4 0.75"}; !slices.Equal(got, want) {
			t.Errorf("rows %q, want %q", got, want)
		}
	}
}

// wandbServer simulates W&B's server, which is not available here: it keeps the histories of runs.
type wandbServer struct {
	mu       sync.Mutex
	history  map[string][]string // lines by run
	repeated bool                // a line was sent again
}

func (s *wandbServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body struct {
		Query     string
		Variables struct{ Name string }
		Files     map[string]struct {
			Offset  int
			Content []string
		}
	}
	_ = json.NewDecoder(r.Body).Decode(&body) // telemetry has another form
	if run, ok := strings.CutSuffix(r.URL.Path, "/file_stream"); ok {
		sent := body.Files["wandb-history.jsonl"]
		run = path.Base(run)
		s.repeated = s.repeated || len(sent.Content) > 0 && sent.Offset != len(s.history[run])
		s.history[run] = append(s.history[run], sent.Content...)
	}
	if err := json.NewEncoder(w).Encode(map[string]any{"data": s.data(body.Query, body.Variables.Name)}); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// data answers a query of the client.
func (s *wandbServer) data(query, run string) any {
	type object = map[string]any
	lines, known := s.history[run]
	tail, _ := json.Marshal(lines[max(len(lines)-1, 0):])
	project := object{"id": "p", "name": "agents", "entity": object{"id": "e", "name": "me"}}
	bucket := object{"id": "b", "name": run, "config": "{}", "summaryMetrics": "{}", "historyLineCount": len(lines), "eventsLineCount": 0,
		"logLineCount": 0, "historyTail": string(tail), "eventsTail": "[]", "tags": []string{}, "wandbConfig": `{"t":1}`, "project": project}
	switch {
	case strings.Contains(query, "query Viewer"):
		return object{"viewer": object{"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": object{"edges": []any{}}}}
	case strings.Contains(query, "query RunResumeStatus") && known:
		return object{"model": object{"id": "p", "name": "agents", "entity": project["entity"], "bucket": bucket}}
	case strings.Contains(query, "mutation UpsertBucket"):
		s.history[run] = lines
		return object{"upsertBucket": object{"bucket": bucket, "inserted": !known}}
	case strings.Contains(query, "mutation CreateRunFiles"):
		return object{"createRunFiles": object{"runID": "b", "uploadHeaders": []any{}, "files": []any{}}}
	}
	return object{}
}
