package health

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/mgrpo/mgrpo/docs"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake simulates a worker with the answers in its fields.
type fake struct {
	alive, ping func(context.Context) error
	ctx         context.Context
	leave       context.CancelFunc
}

func newFake() *fake {
	f := &fake{}
	f.alive = func(context.Context) error { return nil }
	f.ping = f.alive
	f.ctx, f.leave = context.WithCancel(context.Background())
	return f
}

func (f *fake) Alive(ctx context.Context) error { return f.alive(ctx) }
func (f *fake) Ping(ctx context.Context) error  { return f.ping(ctx) }
func (f *fake) Context() context.Context        { return f.ctx }
func (*fake) Version() int64                    { return 17 }
func (*fake) Rollouts() int                     { return 5 }
func (*fake) Epoch() int64                      { return 3 }

func listen(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Address == "" {
		o.Address = "127.0.0.1:0"
	}
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// get requests a path and returns status and body.
func get(t *testing.T, s *Server, path string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return do(t, r)
}

func do(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// Tests the answers that a supervisor gets at each stage of a worker's life.
func TestChecks(t *testing.T) {
	s := listen(t, Options{Agents: []string{"planner", "researcher"}})
	see := func(when, path string, status int, words ...string) {
		t.Helper()
		got, body := get(t, s, path)
		if got != status {
			t.Errorf("%s: %s answers %d %q, want %d", when, path, got, body, status)
		}
		for _, word := range words {
			if !strings.Contains(body, word) {
				t.Errorf("%s: %s answers %q, want %q in it", when, path, body, word)
			}
		}
	}
	see("loading", AlivePath, 200, "ok")
	see("loading", ReadyPath, 503, "planner: it waits for its place", "researcher: it waits for its place")
	planner, researcher := newFake(), newFake()
	s.Joined("planner", planner, planner)
	see("one joined", ReadyPath, 503, "researcher")
	s.Joined("researcher", researcher, researcher)
	see("both joined", ReadyPath, 200, "ok")

	planner.ping = func(context.Context) error { return errors.New("connection\nrefused") }
	researcher.ping = planner.ping
	see("no store", ReadyPath, 503, "the store does not answer: connection refused")
	see("no store", AlivePath, 200)
	planner.ping = newFake().ping
	researcher.ping = planner.ping

	researcher.alive = func(context.Context) error { return errors.New("CUDA error 700") }
	see("device lost", AlivePath, 503, "researcher: its device is lost: CUDA error 700")
	researcher.leave()
	see("worker gone", AlivePath, 200)
	see("worker gone", ReadyPath, 503, "researcher")
	again := newFake()
	s.Joined("researcher", again, again)
	see("joined again", ReadyPath, 200)
}

// A device at work is alive, even if the work takes long.
func TestBusyDevice(t *testing.T) {
	s := listen(t, Options{Agents: []string{"a"}})
	f := newFake()
	f.alive = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	s.Joined("a", f, f)
	if status, body := get(t, s, AlivePath); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

func TestToken(t *testing.T) {
	const token = "a-token-of-some-length"
	s := listen(t, Options{Token: token})
	for _, path := range []string{AlivePath, ReadyPath, MetricsPath, "/"} {
		for _, header := range []string{"", token, "Bearer", "Bearer ", "bearer " + token, "Bearer " + token + "x", "Bearer " + token[1:], "Basic " + token} {
			if status, _ := get(t, s, path, "Authorization", header); status != 401 {
				t.Errorf("%s with %q: %d, want 401", path, header, status)
			}
		}
	}
	if status, body := get(t, s, AlivePath, "Authorization", "Bearer "+token); status != 200 {
		t.Errorf("with the token: %d %s", status, body)
	}
}

// The whole token is compared, not only its beginning.
func TestTokenIsComparedWhole(t *testing.T) {
	h := guard("the-token-itself", http.NotFoundHandler())
	for i := range 4096 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", fmt.Sprintf("Bearer the-token-%d", i))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != 401 {
			t.Fatalf("token %d gets in", i)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"to other machines without a token":  {Address: "0.0.0.0:0"},
		"to all without a token":             {Address: ":0"},
		"a short token":                      {Address: "127.0.0.1:0", Token: "secret"},
		"a token that no header can contain": {Address: "127.0.0.1:0", Token: "twenty bytes, spaces"},
		"no address":                         {Address: "127.0.0.1"},
	} {
		if s, err := Listen(o); err == nil {
			t.Errorf("%s is not refused", name)
			s.Close()
		}
	}
	s := listen(t, Options{})
	for address, want := range map[string]string{
		strings.TrimPrefix(s.URL(), "http://"): "already listens on",
		"8000":                                 `"8000" is not an address to listen on: use HOST:PORT`,
		"127.0.0.1:99999":                      "use HOST:PORT with a port from 0 to 65535",
		"127.0.0.1:unheard-of":                 "use HOST:PORT with a port from 0 to 65535",
		"http://127.0.0.1:80":                  "use HOST:PORT",
		"192.0.2.1:0":                          `"192.0.2.1" is not an address of this machine: use one of its addresses, such as 127.0.0.1`,
		"no name:0":                            `"no name" is not an address of this machine`,
	} {
		if _, err := Listen(Options{Address: address}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", address, err, want)
		}
	}
	if s, err := Listen(Options{Address: ":0", Token: "a-token-of-some-length"}); err != nil {
		t.Errorf("with a token: %v", err)
	} else if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A mounted handler does not need the server's token, and only its own route reaches it.
func TestHandle(t *testing.T) {
	const token = "a-token-of-some-length"
	s := listen(t, Options{Token: token})
	if status, _ := get(t, s, "/v1/models"); status != 401 {
		t.Errorf("nothing is mounted: %d", status)
	}
	s.Handle("GET /v1/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "mounted at %s", r.URL.Path) }))
	if status, body := get(t, s, "/v1/models"); status != 200 || body != "mounted at /v1/models" {
		t.Errorf("mounted: %d %q", status, body)
	}
	for _, path := range []string{AlivePath, MetricsPath, "/v2/models"} {
		if status, _ := get(t, s, path); status != 401 {
			t.Errorf("%s without the token: %d", path, status)
		}
	}
	(*Server)(nil).Handle("/", http.NotFoundHandler())
	if err := (*Server)(nil).Close(); err != nil {
		t.Error(err)
	}
}

// deadlines is a response writer that records its deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error  { d.read = t; return nil }
func (d *deadlines) SetWriteDeadline(t time.Time) error { d.write = t; return nil }

// A mounted handler has no deadlines while it works. Before and after, the server's deadlines apply.
func TestHandlersTakeTheirTime(t *testing.T) {
	began := time.Now()
	w := &deadlines{httptest.NewRecorder(), began, began}
	withoutTimeLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if !w.read.IsZero() || !w.write.IsZero() {
			t.Errorf("a handler at work has deadlines: %v, %v", w.read, w.write)
		}
	})).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.read.Before(began.Add(requestTime)) || w.write.Before(began.Add(answerTime)) {
		t.Errorf("afterwards: %v, %v, want deadlines again", w.read, w.write)
	}
	s := listen(t, Options{})
	s.Handle("/slow", ignoreBody{})
	for range 2 { // the second request checks that the connection still works
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL()+"/slow", strings.NewReader("a body that the handler ignores"))
		if err != nil {
			t.Fatal(err)
		}
		if status, body := do(t, r); status != 200 || body != "done" {
			t.Errorf("%d %q", status, body)
		}
	}
}

// ignoreBody answers without reading the request's body.
type ignoreBody struct{}

func (ignoreBody) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "do")
	if err := http.NewResponseController(w).Flush(); err != nil {
		panic(err)
	}
	_, _ = io.WriteString(w, "ne")
}

func TestTLS(t *testing.T) {
	trusted := httptest.NewUnstartedServer(nil)
	trusted.StartTLS() // for its certificate
	defer trusted.Close()
	s := listen(t, Options{TLS: &tls.Config{Certificates: trusted.TLS.Certificates}})
	r, err := http.NewRequestWithContext(t.Context(), "GET", s.URL()+AlivePath, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := trusted.Client()
	defer client.CloseIdleConnections()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 || resp.TLS == nil || resp.ProtoMajor != 1 {
		t.Errorf("%d over %s", resp.StatusCode, resp.Proto)
	}
	if got := exchange(t, strings.TrimPrefix(s.URL(), "https://"), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.Contains(got, "400") {
		t.Errorf("without TLS: %q", got)
	}
}

// Malformed requests do not harm the server.
func TestHostileRequests(t *testing.T) {
	defer func(before int) { maxConnections = before }(maxConnections)
	maxConnections = 100
	s := listen(t, Options{Agents: []string{"a"}})
	addr := strings.TrimPrefix(s.URL(), "http://")
	for name, c := range map[string]struct{ send, want string }{
		"not HTTP":        {"\x16\x03\x01\x00\xff\x00\r\n\r\n", "400"},
		"long header":     {"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 1<<20), "431"},
		"posted":          {"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", "405"},
		"elsewhere":       {"GET /debug/pprof/ HTTP/1.1\r\nHost: x\r\n\r\n", "404"},
		"up":              {"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", "307"}, // to /etc/passwd, which is not there
		"lengths differ":  {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "400"},
		"an endless body": {"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", "HTTP"},
	} {
		if got := exchange(t, addr, c.send); !strings.Contains(got, c.want) {
			t.Errorf("%s: the answer is %q, want %s", name, got, c.want)
		}
	}
	var open []net.Conn
	for range 2 * maxConnections { // more than the server accepts, each in the middle of a request
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost:")
	}
	for _, c := range open {
		c.Close()
	}
	if status, body := get(t, s, AlivePath); status != 200 {
		t.Errorf("afterwards: %d %s", status, body)
	}
}

// exchange sends bytes and returns the first line of the answer.
func exchange(t *testing.T, addr, send string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go io.WriteString(c, send) // the answer may come before everything is sent
	line, _ := bufio.NewReader(c).ReadString('\n')
	return line
}

// scrape reads /metrics as Prometheus does, and returns the metrics that have a value, by name and labels.
func scrape(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	status, body := get(t, s, MetricsPath)
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v:\n%s", err, body)
	}
	out := map[string]float64{}
	for name, family := range families {
		if strings.HasPrefix(name, "mgrpo_") && family.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		for _, m := range family.Metric {
			out[name+labels(m)] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func labels(m *dto.Metric) string {
	var out string
	for _, l := range m.Label {
		out += " " + l.GetName() + "=" + l.GetValue()
	}
	return out
}

func TestMetrics(t *testing.T) {
	s := listen(t, Options{Agents: []string{"planner", "researcher"}, Newest: func() (int64, time.Time, bool) {
		return 10, time.Now().Add(-time.Hour), true
	}})
	f := newFake()
	s.Joined("planner", f, f)
	s.Progress(metrics.Progress{Agent: "planner", Activity: metrics.RollOut, Version: 11, Done: 3, Total: 128})
	s.Progress(metrics.Progress{Agent: "researcher", Activity: metrics.Waiting, For: []string{"planner"}})
	s.Report(metrics.Record{Kind: metrics.KindStep, Step: 10, Agent: "planner", Values: map[string]float64{"reward_mean": 0.25, "loss": 1}})
	s.Report(metrics.Record{Kind: metrics.KindStep, Step: 11, Agent: "planner", Values: map[string]float64{"reward_mean": 0.5},
		Counts: map[string]map[string]int64{"calls": {"2": 9}, metrics.ToolTimeouts: {"search": 3, "bad\xff": 1}}})
	s.Report(metrics.Record{Kind: metrics.KindEval, Step: 10, Agent: "planner", Values: map[string]float64{"accuracy": 0.75, "pass_at_4": 1}})
	s.Report(metrics.Record{Kind: metrics.KindColdStart, Agent: "researcher", Values: map[string]float64{"loss": 0.4}})
	got := scrape(t, s)
	want := map[string]float64{
		"mgrpo_worker_ready agent=planner":                      1,
		"mgrpo_worker_ready agent=researcher":                   0,
		"mgrpo_version agent=planner":                           17,
		"mgrpo_epoch agent=planner":                             3,
		"mgrpo_rollouts_in_flight agent=planner":                5,
		"mgrpo_phase_info agent=planner phase=step":             1,
		"mgrpo_phase_info agent=researcher phase=waiting":       1,
		"mgrpo_phase_done agent=planner":                        3,
		"mgrpo_phase_total agent=planner":                       128,
		"mgrpo_phase_done agent=researcher":                     0,
		"mgrpo_step_number agent=planner":                       11,
		"mgrpo_step_reward_mean agent=planner":                  0.5,
		"mgrpo_step_tool_timeouts agent=planner tool=search":    3,
		"mgrpo_step_tool_timeouts agent=planner tool=bad\uFFFD": 1,
		"mgrpo_eval_number agent=planner":                       10,
		"mgrpo_eval_accuracy agent=planner":                     0.75,
		"mgrpo_eval_pass_at_4 agent=planner":                    1,
		"mgrpo_cold_start_number agent=researcher":              0,
		"mgrpo_cold_start_loss agent=researcher":                0.4,
		"mgrpo_store_up":                                        1,
		"mgrpo_store_round_trip_seconds":                        got["mgrpo_store_round_trip_seconds"],
		"mgrpo_checkpoint_step":                                 10,
		"mgrpo_checkpoint_age_seconds":                          got["mgrpo_checkpoint_age_seconds"],
	}
	ours := maps.Clone(got)
	maps.DeleteFunc(ours, func(name string, _ float64) bool { return !strings.HasPrefix(name, "mgrpo_") })
	if !maps.Equal(ours, want) {
		t.Errorf("found\n%v, want\n%v", slices.Sorted(maps.Keys(ours)), slices.Sorted(maps.Keys(want)))
		for name, v := range want {
			if ours[name] != v {
				t.Errorf("%s is %v, want %v", name, ours[name], v)
			}
		}
	}
	if got["mgrpo_checkpoint_age_seconds"] < 3600 || got["mgrpo_store_round_trip_seconds"] < 0 {
		t.Errorf("the checkpoint's age is %v, a round trip %v", got["mgrpo_checkpoint_age_seconds"], got["mgrpo_store_round_trip_seconds"])
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes", "process_cpu_seconds_total"} {
		if _, there := got[name]; !there {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	f.ping = func(context.Context) error { return errors.New("gone") }
	got = scrape(t, s)
	if _, there := got["mgrpo_store_round_trip_seconds"]; there || got["mgrpo_store_up"] != 0 {
		t.Errorf("metrics while the store does not answer: %v", got)
	}
}

// Every value in docs/metrics.md has a valid Prometheus name in every kind of record.
func TestEveryValueHasAName(t *testing.T) {
	s := listen(t, Options{})
	values := map[string]float64{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| .* \\| .* \\| .* \\|$").FindAllStringSubmatch(docs.Metrics, -1) {
		values[row[1]] = 1
	}
	if len(values) < 80 {
		t.Errorf("docs/metrics.md has %d values", len(values))
	}
	kinds := []string{metrics.KindColdStart, metrics.KindStep, metrics.KindEval}
	for _, kind := range kinds {
		s.Report(metrics.Record{Kind: kind, Step: 1, Agent: "a", Values: values})
	}
	got := scrape(t, s)
	for name := range values {
		for _, kind := range kinds {
			if got["mgrpo_"+kind+"_"+name+" agent=a"] != 1 {
				t.Errorf("there is no metric for %s of a %s", name, kind)
			}
		}
	}
}

// TestAddressOfAll: a server that listens on all addresses names one that works locally, and
// one with the machine's name for other machines.
func TestAddressOfAll(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":0"} {
		s := listen(t, Options{Address: address, Token: token})
		if status, _ := get(t, s, AlivePath, "Authorization", "Bearer "+token); status != 200 || !strings.HasPrefix(s.URL(), "http://127.0.0.1:") {
			t.Errorf("%s: %s answers with status %d", address, s.URL(), status)
		}
		if want := s.URL() + "/live, from other machines " + strings.Replace(s.URL(), "127.0.0.1", name, 1) + "/live"; s.URLs("/live") != want {
			t.Errorf("%s: %s, want %s", address, s.URLs("/live"), want)
		}
	}
	if s := listen(t, Options{}); s.URLs("/live") != s.URL()+"/live" {
		t.Errorf("a server of this machine only: %s", s.URLs("/live"))
	}
}
