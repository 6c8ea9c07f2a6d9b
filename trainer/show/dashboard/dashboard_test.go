package dashboard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/dashboard"
	"github.com/mgrpo/mgrpo/trainer/show/health"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// agents are the agents of the run in the folder fixture.
var agents = []string{"planner", "researcher"}

const fixture = "../report/testdata/run"

// machine is a worker with a set number of rollouts and a fixed question for each query.
type machine struct{ rollouts atomic.Int64 }

func (m *machine) Rollouts() int { return int(m.rollouts.Load()) }

func (*machine) Question(id string) (_, _ string) { return "question of " + id, "wanted by " + id }

// process is one process of a team: a page on a server, and an agent's place.
type process struct {
	page *dashboard.Page
	machine
	member *store.Member
	url    string // address of the page
}

// start starts a team of processes with one store, one process for each agent.
func start(t *testing.T, token string) map[string]*process {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Run: "watched"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	team := map[string]*process{}
	for _, agent := range agents {
		p := &process{page: dashboard.New(dashboard.Options{Run: "watched", Agents: agents, Steps: 6, Token: token,
			Warn: func(n metrics.Note) { t.Errorf("got the warning %q, want none", n.Text) }})}
		server, err := health.Listen(health.Options{Address: "127.0.0.1:0", Token: token})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		t.Cleanup(p.page.Close)
		p.page.Mount(server)
		p.url = server.URL() + dashboard.Path
		request := store.JoinRequest{Agents: agents, Config: map[string]string{"run.seed": "17"}, Offers: []store.Offer{{Version: store.FromStart}}}
		if p.member, err = s.Join(t.Context(), agent, request, func(string) {}); err != nil {
			t.Fatal(err)
		}
		p.page.Joined(agent, &p.machine, p.member)
		team[agent] = p
	}
	for _, p := range team {
		if _, err := p.member.Round.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for known := 0; known < len(agents); time.Sleep(time.Millisecond) { // until each has published its first activity
		activities, err := team[agents[0]].member.Display.Activities(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		known = len(activities)
	}
	return team
}

// run reports the agent's records of the fixture, and returns the records of all agents.
func (p *process) run(t *testing.T, agent string) []metrics.Line {
	t.Helper()
	log, err := metrics.Read(fixture)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range log.Records {
		if l.Agent == agent {
			p.page.Report(l.Record)
		}
	}
	return log.Records
}

// event is an event of a stream.
type event struct{ id, name, html string }

// stream opens a stream of events. last is the id of the last event that was seen, "" for none.
func stream(t *testing.T, url, last string) (next func() event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("got status %s and type %s, want a stream of events", resp.Status, kind)
	}
	lines := bufio.NewReader(resp.Body)
	return func() (e event) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("the stream ended: %v", err)
			}
			field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch field {
			case "id":
				e.id = value
			case "event":
				e.name = value
			case "data":
				if err := json.Unmarshal([]byte(value), &e.html); err != nil {
					t.Fatal(err)
				}
			case "":
				if e.name != "" {
					return e
				}
			}
		}
	}
}

// sections reads a stream until the sections of the page contain the wanted texts. It returns each section's last event.
func sections(t *testing.T, next func() event, wanted map[string][]string) map[string]event {
	t.Helper()
	got := map[string]event{}
	for {
		e := next()
		got[e.name] = e
		missing := 0
		for name, texts := range wanted {
			for _, text := range texts {
				if !strings.Contains(got[name].html, text) {
					missing++
				}
			}
		}
		if missing == 0 {
			return got
		}
	}
}

var (
	chartOf = regexp.MustCompile(`<figcaption><b>([^<]*)</b>[^£]*?data-curves="([^"]*)"`)
	factOf  = regexp.MustCompile(`data-name="([a-z_]+)" data-value="([^"]+)"`)
)

// TestEveryPageShowsTheTeam: the page of every worker shows all agents, with the numbers of the run's records.
func TestEveryPageShowsTheTeam(t *testing.T) {
	team := start(t, "")
	team["planner"].page.Progress(metrics.Progress{Agent: "planner", Activity: metrics.Waiting, For: []string{"researcher"}})
	team["researcher"].page.Progress(metrics.Progress{Agent: "researcher", Activity: metrics.RollOut, Version: 5, Done: 3, Total: 8})
	team["researcher"].rollouts.Store(41)
	var records []metrics.Line
	for _, agent := range agents {
		records = team[agent].run(t, agent)
	}
	last := map[string]metrics.Line{}
	for _, l := range records {
		if l.Kind == metrics.KindStep {
			last[l.Agent] = l
		}
	}
	wanted := map[string][]string{"report": {"Reward of planner", "Reward of researcher"}, "team": {
		`<b>waits for</b> <span class="chip"><i class="swatch c1"></i>researcher</span>`,
		`<b>step-5</b>`, `<progress class="c1" value="3" max="8"></progress> <small>3 of 8</small>`,
		`<dt>rollouts in flight</dt><dd data-name="rollouts">41</dd>`,
		`<li>planner, researcher: its worker to be ready to begin</li>`}}
	for agent, p := range team {
		got := sections(t, stream(t, p.url, ""), wanted)
		var want, shown []string
		for _, of := range agents {
			for _, name := range []string{"rollout_tokens_per_second", "learn_tokens_per_second", "memory_bytes", "memory_peak_bytes"} {
				if v, ok := last[of].Values[name]; ok {
					want = append(want, name+" "+strconv.FormatFloat(v, 'f', -1, 64))
				}
			}
		}
		for _, m := range factOf.FindAllStringSubmatch(got["team"].html, -1) {
			shown = append(shown, m[1]+" "+m[2])
		}
		if !slices.Equal(shown, want) {
			t.Errorf("the page of %s shows %v, want %v", agent, shown, want)
		}
	}
}

// TestStreamResumes: a reader that connects again, to any worker's page, gets only sections that are newer than its last event.
func TestStreamResumes(t *testing.T) {
	team := start(t, "")
	for _, agent := range agents {
		team[agent].run(t, agent)
	}
	if err := outcome(t, team, 0, "forty-two", nil); err != nil {
		t.Fatal(err)
	}
	wanted := map[string][]string{"team": {"is about to begin"}, "report": {"Reward of researcher"}, "rollouts": {"forty-two"}}
	next := stream(t, team["planner"].url, "")
	got := sections(t, next, wanted)
	id := ""
	for _, e := range got {
		if len(e.id) > len(id) { // the id of the last event lists all sections
			id = e.id
		}
	}
	again := stream(t, team["researcher"].url, id+",nonsense,=,rollouts")
	team["planner"].page.Progress(metrics.Progress{Agent: "planner", Activity: metrics.Learn})
	for {
		e := again()
		if e.name == "rollouts" {
			t.Fatalf("the rollouts were sent again after event %s, which has them", id)
		}
		if e.name == "team" && strings.Contains(e.html, "<b>learn</b>") {
			break
		}
	}
	if err := outcome(t, team, 1, "forty-three", nil); err != nil {
		t.Fatal(err)
	}
	sections(t, again, map[string][]string{"rollouts": {"forty-three"}})
}

// outcome plays rollout k of query "q", in which the researcher answers calls with the given texts, and publishes its outcome.
func outcome(t *testing.T, team map[string]*process, k int, answer string, answers []string) error {
	t.Helper()
	boss, help := team["planner"].member, team["researcher"].member
	if err := boss.Phases.Begin(t.Context(), store.TrainPhase(0), store.Plan{Queries: []string{"q"}, Rollouts: 8}); err != nil {
		return err
	}
	for i, text := range answers {
		v := store.Invocation{Phase: store.TrainPhase(0), Query: "q", Rollout: k, Agent: "researcher", Index: i, Task: "task " + text}
		called := make(chan error, 1)
		go func() {
			_, err := boss.Invocations.Call(t.Context(), v)
			called <- err
		}()
		claimed, err := help.Invocations.Claim(t.Context(), v.Phase, 1)
		if err != nil {
			return err
		}
		if err := errors.Join(help.Invocations.Complete(t.Context(), claimed[0], store.Result{Text: text}), <-called); err != nil {
			return err
		}
	}
	return boss.Phases.PublishOutcome(t.Context(), store.TrainPhase(0), store.Outcome{Query: "q", Rollout: k, Correct: 1, Reward: 1, Format: true, Answer: answer,
		Calls: map[string]int{"researcher": len(answers)}})
}

// TestEarlierRecords: the page of a resumed run shows the earlier records from the disk. A step
// that is made again replaces its earlier record and the records of later steps.
func TestEarlierRecords(t *testing.T) {
	log, err := metrics.Read(fixture)
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Options{Run: "watched"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := dashboard.New(dashboard.Options{Run: "watched", Agents: agents, Before: log.Records})
	defer p.Close()
	server, err := health.Listen(health.Options{Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p.Mount(server)
	next := stream(t, server.URL()+dashboard.Path, "")
	sections(t, next, map[string][]string{"team": {"No agent of this process has a place"}, "report": {"Reward of planner"}})
	p.Report(metrics.Record{Kind: metrics.KindStep, Step: 2, Agent: "planner", Values: map[string]float64{"reward_mean": 0.625}})
	got := sections(t, next, map[string][]string{"report": {`[2,0.625]`}})
	for _, m := range chartOf.FindAllStringSubmatch(got["report"].html, -1) {
		if m[1] == "Reward" && !regexp.MustCompile(`planner&#34;,&#34;c&#34;:&#34;c0&#34;,&#34;p&#34;:\[\[1,[0-9.]+\],\[2,0\.625\]\]`).MatchString(m[2]) {
			t.Errorf("after step 2 was made again: got curves %s, want none of the planner's points after it", m[2])
		}
	}
}

// TestHostileStore: markup in the store appears as text on the page. Damaged records and activities appear as a message.
func TestHostileStore(t *testing.T) {
	const evil = `</script><img src=x onerror="document.title='owned'">`
	team := start(t, "")
	planner := team["planner"]
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(outcome(t, team, 0, evil, []string{evil, strings.Repeat("long ", 10_000)}))
	must(planner.member.Display.PublishRecord(t.Context(), []byte(`{"kind":"step","step":1,"agent":"`+strings.Repeat("x", 99)+`","values":{"reward_mean":0.5},"counts":{"tool_calls":{"`+
		strings.ReplaceAll(evil, `"`, `'`)+`":20},"tool_errors":{"`+strings.ReplaceAll(evil, `"`, `'`)+`":20}}}`)))
	must(planner.member.Display.PublishRecord(t.Context(), []byte(`{"kind":"step","step":-1}`)))
	must(planner.member.Display.PublishRecord(t.Context(), []byte(`{"kind":17}`)))
	must(planner.member.Display.PublishActivity(t.Context(), []byte(`{"phase":"`+strings.ReplaceAll(evil, `"`, `'`)+`","for":["nobody"],"done":-5,"total":-1,"since":"0001-01-01T00:00:00Z"}`)))
	got := sections(t, stream(t, team["researcher"].url, ""), map[string][]string{"team": {"onerror"}, "rollouts": {"onerror"}, "report": {"onerror"}})
	for name, e := range got {
		if strings.Contains(e.html, "<img") || strings.Contains(e.html, "</script") {
			t.Errorf("section %s contains markup from the store: %s", name, e.html)
		}
		if len(e.html) > 100_000 {
			t.Errorf("section %s has %d bytes, want at most 100000", name, len(e.html))
		}
	}
	if !strings.Contains(got["team"].html, "2 records in the store cannot be read") {
		t.Errorf("no message about the 2 damaged records: %s", got["team"].html)
	}
	must(planner.member.Display.PublishActivity(t.Context(), []byte(`{"done":"many"}`)))
	sections(t, stream(t, team["researcher"].url, ""), map[string][]string{"team": {"the activity of planner cannot be read"}})
}

const secret = "a-token-of-some-length"

// get requests a page without following redirects.
func get(t *testing.T, method, url, host string, header http.Header) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header, r.Host = header, host
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp
}

// TestToken: with a token the page requires the token or a cookie. A browser sends the token
// once, in the address, and gets the cookie, which opens only the page.
func TestToken(t *testing.T) {
	team := start(t, secret)
	url := team["planner"].url
	first := get(t, "GET", url+"?token="+secret, "", http.Header{})
	cookies := first.Cookies()
	if first.StatusCode != http.StatusSeeOther || first.Header.Get("Location") != dashboard.Path || len(cookies) != 1 {
		t.Fatalf("with the token: got %s to %s with cookies %v, want a redirect to %s with one", first.Status, first.Header.Get("Location"), cookies, dashboard.Path)
	}
	c := cookies[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != dashboard.Path || strings.Contains(c.Value, secret) {
		t.Errorf("got cookie %s, want an HttpOnly one for %s without the token", c, dashboard.Path)
	}
	for name, try := range map[string]struct {
		query, header, value string
		status               int
	}{
		"nothing":           {"", "", "", 401},
		"the cookie":        {"", "Cookie", c.Name + "=" + c.Value, 200},
		"the header":        {"", "Authorization", "Bearer " + secret, 200},
		"a wrong cookie":    {"", "Cookie", c.Name + "=" + c.Value[1:], 401},
		"the token there":   {"", "Cookie", c.Name + "=" + secret, 401},
		"a wrong header":    {"", "Authorization", "Bearer " + secret + "x", 401},
		"another scheme":    {"", "Authorization", secret, 401},
		"a wrong token":     {"?token=" + secret[1:], "", "", 401},
		"an empty token":    {"?token=", "", "", 401},
		"a cookie, emptied": {"", "Cookie", c.Name + "=", 401},
	} {
		header := http.Header{}
		if try.header != "" {
			header.Set(try.header, try.value)
		}
		if got := get(t, "GET", url+try.query, "", header).StatusCode; got != try.status {
			t.Errorf("%s: got status %d, want %d", name, got, try.status)
		}
		if got := get(t, "GET", url+"/events"+try.query, "", header).StatusCode; got != try.status {
			t.Errorf("%s, events: got status %d, want %d", name, got, try.status)
		}
		if got := get(t, "GET", strings.TrimSuffix(url, dashboard.Path)+health.MetricsPath, "", header).StatusCode; got == 200 && try.header == "Cookie" {
			t.Errorf("%s: the metrics can be read with a cookie of the page", name)
		}
	}
}

// TestOtherSites: requests with another host name or another method are refused, and the page's
// content security policy forbids other sites.
func TestOtherSites(t *testing.T) {
	url := start(t, "")["planner"].url
	for host, status := range map[string]int{"": 200, "localhost:80": 200, "[::1]:9464": 200, "10.1.2.3": 200, "evil.example": 403, "evil.example:9464": 403, "127.0.0.1.evil.example": 403} {
		if got := get(t, "GET", url, host, http.Header{}).StatusCode; got != status {
			t.Errorf("host %q: got status %d, want %d", host, got, status)
		}
	}
	if got := get(t, "POST", url, "", http.Header{}).StatusCode; got != http.StatusMethodNotAllowed {
		t.Errorf("POST: got status %d, want %d", got, http.StatusMethodNotAllowed)
	}
	if got := get(t, "HEAD", url+"/events", "", http.Header{}).StatusCode; got != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: got status %d, want %d", got, http.StatusMethodNotAllowed)
	}
	policy := get(t, "GET", url, "", http.Header{}).Header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "connect-src 'self'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("got policy %q, want %s in it", policy, part)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("got policy %q, want it without unsafe", policy)
	}
}

// TestViewers: streams above the limit are refused with status 503, and closing the page ends all streams.
func TestViewers(t *testing.T) {
	p := start(t, "")["planner"]
	var open []*http.Response
	for {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			break
		}
		if open = append(open, resp); len(open) > 200 {
			t.Fatalf("%d streams are open, and none was refused", len(open))
		}
	}
	p.page.Close()
	for _, resp := range open {
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		}
	}
}

// TestNothingToPublishTo: if records cannot be published, the page warns once, and the run continues.
func TestNothingToPublishTo(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Run: "watched"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var warnings []string
	p := dashboard.New(dashboard.Options{Run: "watched", Agents: agents, Warn: func(n metrics.Note) { warnings = append(warnings, n.Agent+": "+n.Text) }})
	defer p.Close()
	m, err := s.Join(t.Context(), "planner", store.JoinRequest{Agents: agents, Offers: []store.Offer{{Version: store.FromStart}}}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	p.Joined("planner", &machine{}, m)
	large := map[string]map[string]int64{metrics.ToolCalls: {strings.Repeat("x", store.MaxDisplayBytes): 1}}
	for step := range int64(3) {
		p.Report(metrics.Record{Kind: metrics.KindStep, Step: step, Agent: "planner", Counts: large})
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "planner: the pages at /live miss some of its statistics") {
		t.Errorf("got warnings %q, want one about the missing statistics", warnings)
	}
}
