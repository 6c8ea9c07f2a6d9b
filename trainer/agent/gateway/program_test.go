package gateway

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestResultIsRepeated: a result that a proxy loses is sent again. A refused result is not.
func TestResultIsRepeated(t *testing.T) {
	var sent atomic.Int32
	statuses := []int{http.StatusBadGateway, http.StatusOK, http.StatusConflict}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(statuses[sent.Add(1)-1])
		}
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	c := &Client{URL: server.URL, Command: []string{"true"}}
	offer := &Lease{ID: "a", Query: []byte(`{}`), Deadline: time.Now().Add(time.Minute).Unix(), Renew: 60}
	if _, err := c.play(t.Context(), offer); err != nil || sent.Load() != 2 {
		t.Errorf("a lost result was sent %d times in all, want 2; error %v", sent.Load(), err)
	}
	if _, err := c.play(t.Context(), offer); err == nil || sent.Load() != 3 {
		t.Errorf("after a refused result, results were sent %d times in all, want 3; error %v", sent.Load(), err)
	}
}

// TestClientWithoutProgram: a machine that cannot start the program reports no result, so another machine plays the rollout.
func TestClientWithoutProgram(t *testing.T) {
	var sent atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			sent.Add(1)
		}
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for _, command := range [][]string{nil, {""}, {"no-such-program"}} {
		c := &Client{URL: server.URL, Command: command}
		if err := c.Play(t.Context()); err == nil || sent.Load() > 0 {
			t.Errorf("%q: %v, %d results", command, err, sent.Load())
		}
	}
	c := &Client{URL: server.URL, Command: []string{"/etc/hostname"}} // exists, but is not a program
	offer := &Lease{ID: "a", Query: []byte(`{}`), Deadline: time.Now().Add(time.Minute).Unix(), Renew: 60}
	if ok, err := c.play(t.Context(), offer); ok || !errors.Is(err, errNotStarted) || sent.Load() > 0 {
		t.Errorf("%v, %v, %d results", ok, err, sent.Load())
	}
}

// TestLongRow: a row that is too long for the environment is in a file, which is removed after the program's end.
func TestLongRow(t *testing.T) {
	p, err := NewPrograms(ProgramOptions{Command: []string{"sh", "-c", `wc -c <"$MGRPO_QUERY_FILE"; ls "$MGRPO_QUERY_FILE" >&2`}, Dir: t.TempDir(), Timeout: time.Hour, Secret: runSecret})
	if err != nil {
		t.Fatal(err)
	}
	row := []byte(`{"question": "` + strings.Repeat("x", 200_000) + `"}`)
	got, err := p.Play(t.Context(), Job{Ticket: Ticket{Run: run, Query: "q"}, Row: row})
	if err != nil || got.Failed != nil || got.Result.Answer != strconv.Itoa(len(row)) {
		t.Errorf("got %+v, error %v", got, err)
	}
	if _, err := os.Stat(strings.TrimSpace(got.Stderr)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file %s is still there: %v", got.Stderr, err)
	}
}

// TestPrograms: the last line of a program's output is its result, also if a child process keeps the output
// open. Child processes are killed with the program. Hidden variables are not in the program's environment.
func TestPrograms(t *testing.T) {
	t.Setenv("A_SECRET", "hidden")
	dir := t.TempDir()
	p, err := NewPrograms(ProgramOptions{Command: []string{"sh", "-c", `sleep 600 & echo $! >child; echo "secret=$A_SECRET" >&2; echo noise; echo "{\"answer\": \"$MGRPO_ROLLOUT $OPENAI_BASE_URL\"}"`},
		Dir: dir, Timeout: time.Hour, BaseURL: "http://x/v1", Secret: runSecret, HiddenEnv: []string{"A_SECRET"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Play(t.Context(), Job{Ticket: Ticket{Run: run, Query: "q", Rollout: 3}, Text: "?"})
	if err != nil || got.Failed != nil || got.Result.Answer != "3 http://x/v1" || got.Stderr != "secret=\n" {
		t.Errorf("got %+v, error %v", got, err)
	}
	pid, err := os.ReadFile(dir + "/child")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range strings.TrimSpace(string(pid)) {
		n = 10*n + int(c-'0')
	}
	for range 500 { // waits until the child has ended
		if stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the child still runs after its program ended; killing it: %v", syscall.Kill(n, syscall.SIGKILL))
}
