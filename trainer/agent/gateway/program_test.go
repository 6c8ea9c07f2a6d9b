package gateway

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestResultIsToldAgain: a result that a proxy loses is sent again. A refused result is not.
func TestResultIsToldAgain(t *testing.T) {
	var told atomic.Int32
	statuses := []int{http.StatusBadGateway, http.StatusOK, http.StatusConflict}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(statuses[told.Add(1)-1])
		}
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	c := &Client{URL: server.URL, Command: []string{"true"}}
	offer := &Lease{ID: "a", Query: []byte(`{}`), Deadline: time.Now().Add(time.Minute).Unix(), Renew: 60}
	if err := c.play(t.Context(), offer); err != nil || told.Load() != 2 {
		t.Errorf("a lost result was sent %d times in all, want 2; error %v", told.Load(), err)
	}
	if err := c.play(t.Context(), offer); err == nil || told.Load() != 3 {
		t.Errorf("after a refused result, results were sent %d times in all, want 3; error %v", told.Load(), err)
	}
}

// TestPrograms: the last line of a program's output is its result, also if a child process keeps the output
// open. Child processes are killed with the program. Hidden variables are not in the program's environment.
func TestPrograms(t *testing.T) {
	t.Setenv("A_SECRET", "hidden")
	dir := t.TempDir()
	p, err := NewPrograms(Programs{Command: []string{"sh", "-c", `sleep 600 & echo $! >child; echo "secret=$A_SECRET" >&2; echo noise; echo "{\"answer\": \"$MGRPO_ROLLOUT $OPENAI_BASE_URL\"}"`},
		Dir: dir, Timeout: time.Hour, BaseURL: "http://x/v1", Secret: secret, Hidden: []string{"A_SECRET"}})
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
