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

// TestResultIsToldAgain checks that a result that a proxy loses is sent again, and that a refused result is not.
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
	offer := &Offer{ID: "a", Query: []byte(`{}`), Deadline: time.Now().Add(time.Minute).Unix(), Renew: 60}
	if err := c.play(t.Context(), offer); err != nil || told.Load() != 2 {
		t.Errorf("told %d times, %v", told.Load(), err)
	}
	if err := c.play(t.Context(), offer); err == nil || told.Load() != 3 {
		t.Errorf("told %d times, %v", told.Load(), err)
	}
}

// TestPrograms: the last line is the result, also where a child keeps the output open; no child outlives its program, and
// none sees what is hidden.
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
		t.Errorf("%+v, %v", got, err)
	}
	pid, err := os.ReadFile(dir + "/child")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range strings.TrimSpace(string(pid)) {
		n = 10*n + int(c-'0')
	}
	for range 500 { // until init has reaped it
		if stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the child lives on: %v", syscall.Kill(n, syscall.SIGKILL))
}
