package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// fixture is a trimmed run of the quickstart's team.
const fixture = "testdata/run"

var update = flag.Bool("update", false, "rewrite docs/report.png from the run that MGRPO_RUN names")

func render(t *testing.T, opt Options, dirs ...string) string {
	t.Helper()
	var out bytes.Buffer
	r, err := Open(dirs)
	if err == nil {
		err = r.Write(&out, opt)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// copyRun copies the fixture to a folder that a test may change.
func copyRun(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.CopyFS(dir, os.DirFS(fixture)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func embedded(t *testing.T, page string) trajectorySample {
	t.Helper()
	match := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page)
	if match == nil {
		t.Fatal("no data in the page")
	}
	var raw struct {
		Agents, Phases []string
		Rollouts       []struct {
			Phase, K int
			Query    string
			Main     *struct {
				Adv   float64
				Turns []struct {
					Role, Text string
					Tokens     [][2]any
				}
			}
			Subs []struct{ Agent, I int }
		}
	}
	if err := json.Unmarshal([]byte(match[1]), &raw); err != nil {
		t.Fatal(err)
	}
	out := trajectorySample{Agents: raw.Agents, Phases: raw.Phases}
	for _, r := range raw.Rollouts {
		x := rollout{Phase: r.Phase, K: r.K, Query: r.Query, Subs: make([]trajectory, len(r.Subs))}
		if r.Main != nil {
			x.Main = &trajectory{Advantage: r.Main.Adv}
			for _, u := range r.Main.Turns {
				shown := turn{Role: u.Role, Text: u.Text}
				for _, k := range u.Tokens {
					shown.Tokens = append(shown.Tokens, token{k[0].(string), float32(k[1].(float64))})
				}
				x.Main.Turns = append(x.Main.Turns, shown)
			}
		}
		out.Rollouts = append(out.Rollouts, x)
	}
	return out
}

func TestReport(t *testing.T) {
	page := render(t, Options{}, fixture)
	for _, want := range []string{"<h1>fixture</h1>", "all 6 steps", "Held-out accuracy", "planner", "researcher", "Delegations d_k",
		"Entropy", "Clipped tokens", "Gradient norm", "Log-prob gap", "Rollout throughput", "Decode batches of planner", "Memory", "queries_per_step: 8"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, `class="missing"`) {
		t.Error("the page reports that something is missing")
	}
	if len(page) > 5<<20 {
		t.Errorf("%d bytes", len(page))
	}
	data := embedded(t, page)
	if len(data.Phases) < 3 || len(data.Rollouts) < 10 {
		t.Errorf("phases %v, %d rollouts", data.Phases, len(data.Rollouts))
	}
	advantages, subs := 0, 0
	for _, r := range data.Rollouts {
		subs += len(r.Subs)
		if r.Main == nil {
			t.Fatalf("%s/%d has no main trajectory", r.Query, r.K)
		}
		if r.Main.Advantage != 0 {
			advantages++
		}
		for _, u := range r.Main.Turns {
			if u.Role == "assistant" && len(u.Tokens) == 0 {
				t.Fatalf("%s/%d: a sampled turn without tokens", r.Query, r.K)
			}
		}
	}
	if advantages == 0 || subs == 0 {
		t.Errorf("%d rollouts with an advantage, %d sub-agents' trajectories", advantages, subs)
	}
}

// TestTokensMakeTheTurn: the displayed tokens, joined, are the turn's text.
func TestTokensMakeTheTurn(t *testing.T) {
	opened, err := Open([]string{fixture})
	if err != nil {
		t.Fatal(err)
	}
	r := opened.runs[0]
	files, err := r.trajectoryFiles()
	if err != nil {
		t.Fatal(err)
	}
	tokenizers, turns := &tokenizers{dirs: r.dirs, loaded: map[string]*tokenizer.Tokenizer{}}, 0
	for _, f := range files {
		queries, err := queriesIn(f.path)
		if err != nil {
			t.Fatal(err)
		}
		lines, damaged, err := trajectoriesOf(f, slices.Collect(maps.Keys(queries)))
		if err != nil || damaged > 0 {
			t.Fatalf("%s: %d damaged, %v", f.path, damaged, err)
		}
		for _, l := range lines {
			shown := tokenizers.show(l, 0)
			for i, u := range l.Turns {
				if !u.Sampled {
					continue
				}
				turns++
				text := ""
				for _, k := range shown.Turns[i].Tokens {
					text += k.text
				}
				if strings.TrimSpace(text) != strings.TrimSpace(u.Text) {
					t.Errorf("%s turn %d: tokens make %q, the turn is %q", l.ID, i, text, u.Text)
				}
			}
		}
	}
	t.Logf("%d turns", turns)
}

// TestSelfContained: the page has no external references.
func TestSelfContained(t *testing.T) {
	page := render(t, Options{}, fixture)
	for _, bad := range []string{"http://", "https://", "src=", "@import", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// TestHostileTexts: a model's text can neither end the data nor become markup.
func TestHostileTexts(t *testing.T) {
	const evil = "</script><script>document.title='owned'</script><!--\u2028\u2029&lt;<img src=x onerror=alert(1)>"
	dir := copyRun(t)
	escaped, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trajectories", "step-5", "planner.jsonl")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`"answer":"[^"]*"`).ReplaceAllLiteral(text, []byte(`"answer":`+string(escaped)))
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	j := metrics.NewJSONL(dir)
	j.Note(metrics.Infof("planner", metrics.TopicTools, "%s", evil))
	j.Report(metrics.Record{Kind: metrics.KindStep, Step: 7, Agent: `"><script>alert(1)</script>`, Values: map[string]float64{"reward_mean": 1}})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	page := render(t, Options{}, dir)
	if strings.Contains(page, "<script>document") || strings.Contains(page, "<script>alert") || strings.Contains(page, "<img") {
		t.Error("a model's text is markup")
	}
	if n := strings.Count(page, "</script>"); n != 2 {
		t.Errorf("%d closing script tags, want 2", n)
	}
	data := page[strings.Index(page, `id="data">`):]
	if data = data[:strings.Index(data, "</script>")]; strings.ContainsAny(data, "\u2028\u2029") || !strings.Contains(data, `owned`) {
		t.Error("the data has raw line separators or does not have the text")
	}
	embedded(t, page)
}

// TestFurtherRows: a folded conversation is one trajectory on the page, with the turns of all rows in order.
func TestFurtherRows(t *testing.T) {
	dir := copyRun(t)
	path := filepath.Join(dir, "trajectories", "step-5", "planner.jsonl")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	var head line
	if err := json.Unmarshal([]byte(first), &head); err != nil {
		t.Fatal(err)
	}
	row := func(n string) string {
		r := head
		r.ID, r.RowOf = head.ID+n, head.ID
		r.Turns = append(r.Turns[:1:1], r.Turns[1:]...)
		r.Turns[0].Text = "row" + n
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(out) + "\n"
	}
	if err := os.WriteFile(path, []byte(string(text)+row("+1")+row("+10")+row("+2")), 0o644); err != nil {
		t.Fatal(err)
	}
	plain, folded := embedded(t, render(t, Options{}, fixture)), embedded(t, render(t, Options{}, dir))
	if len(folded.Rollouts) != len(plain.Rollouts) {
		t.Fatalf("%d rollouts, %d without further rows", len(folded.Rollouts), len(plain.Rollouts))
	}
	var begins []string
	for i, r := range folded.Rollouts {
		if len(r.Subs) != len(plain.Rollouts[i].Subs) {
			t.Errorf("%s/%d: %d calls, %d without further rows", r.Query, r.K, len(r.Subs), len(plain.Rollouts[i].Subs))
		}
		for _, u := range r.Main.Turns {
			if strings.HasPrefix(u.Text, "row+") {
				begins = append(begins, u.Text)
			}
		}
		if more := len(r.Main.Turns) - len(plain.Rollouts[i].Main.Turns); more != 0 && more != 3*len(head.Turns) {
			t.Errorf("%s/%d: %d additional turns, want the %d turns of three rows", r.Query, r.K, more, 3*len(head.Turns))
		}
	}
	if want := []string{"row+1", "row+2", "row+10"}; !slices.Equal(begins, want) {
		t.Errorf("the page has the rows %q, want %q", begins, want)
	}
}

// TestMissingPieces: the report of an incomplete run names the missing parts.
func TestMissingPieces(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		want   string
	}{
		{"no config", remove("config.yaml"), "no config.yaml"},
		{"no metrics", remove("metrics.jsonl"), "does not contain metrics.jsonl"},
		{"no trajectories", remove("trajectories"), "no trajectories"},
		{"no checkpoints", remove("checkpoints"), "tokenizer: its trajectories are shown by turns"},
		{"no evaluations", keep(`"kind":"step"`), "no held-out evaluations"},
		{"no step", keep(`"kind":"cold_start"`), "No training step is finished"},
		{"interrupted", keep(`"step":[0-3],`), "after step 3 of 6"},
		{"no main agent", func(t *testing.T, dir string) {
			keep(`"agent":"researcher"`)(t, dir)
			files, _ := filepath.Glob(filepath.Join(dir, "trajectories", "*", "planner.jsonl"))
			for _, f := range files {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
		}, "There are no files of planner"},
		{"damaged trajectories", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "trajectories", "step-5", "planner.jsonl"), func(s string) string {
				return strings.Replace(s, `"sampled":[false`, `"sampled":[true`, 1) + "{\"query\":7}\n\x00\n"
			})
		}, "3 damaged trajectories of planner"},
		{"damaged metrics", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, "metrics.jsonl"), func(s string) string { return s[:len(s)-40] })
		}, "1 damaged lines of metrics.jsonl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := copyRun(t)
			c.damage(t, dir)
			if page := render(t, Options{}, dir); !strings.Contains(page, c.want) {
				match := regexp.MustCompile(`(?s)class="missing".*?</section>`).FindString(page)
				t.Errorf("want %q, the page has %s", c.want, match)
			}
		})
	}
}

func remove(path string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.RemoveAll(filepath.Join(dir, path)); err != nil {
			t.Fatal(err)
		}
	}
}

// keep removes the lines of metrics.jsonl that do not match.
func keep(pattern string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		edit(t, filepath.Join(dir, "metrics.jsonl"), func(s string) string {
			return strings.Join(regexp.MustCompile(`(?m)^.*`+pattern+`.*\n`).FindAllString(s, -1), "")
		})
	}
}

func edit(t *testing.T, path string, f func(string) string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(f(string(text))), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestFoldersOfSeveralServers: the agents' own folders together make the whole run.
func TestFoldersOfSeveralServers(t *testing.T) {
	planner, researcher := copyRun(t), copyRun(t)
	for dir, other := range map[string]string{planner: "researcher", researcher: "planner"} {
		keep(`"agent":"`+map[string]string{"planner": "researcher", "researcher": "planner"}[other]+`"`)(t, dir)
		files, _ := filepath.Glob(filepath.Join(dir, "trajectories", "*", other+".jsonl"))
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	together, whole := embedded(t, render(t, Options{}, planner, researcher)), embedded(t, render(t, Options{}, fixture))
	if len(together.Rollouts) != len(whole.Rollouts) {
		t.Errorf("%d rollouts, want %d", len(together.Rollouts), len(whole.Rollouts))
	}
	for i, r := range together.Rollouts {
		if r.Main == nil || len(r.Subs) != len(whole.Rollouts[i].Subs) {
			t.Errorf("%s/%d: main %v and %d sub-agents' trajectories, want %d", r.Query, r.K, r.Main != nil, len(r.Subs), len(whole.Rollouts[i].Subs))
		}
	}
}

// TestOneAndManyAgents: reports of a single agent and of four agents.
func TestOneAndManyAgents(t *testing.T) {
	for _, names := range [][]string{{"alone"}, {"main", "a", "b", "c"}} {
		dir := t.TempDir()
		j := metrics.NewJSONL(dir)
		for n := range int64(1500) {
			for i, name := range names {
				v := map[string]float64{"reward_mean": float64(n) / 1500, "grad_norm": 1e-9 * float64(i+1)}
				if i == 0 {
					v["accuracy"] = 0.5
				}
				j.Report(metrics.Record{Kind: metrics.KindStep, Step: n + 1, Agent: name, Values: v,
					Counts: map[string]map[string]int64{"calls": {"0": 1, "20": 2, "x": 1, "9223372036854775807": 1}, "decode_batch": {"9223372036854775807": 1, "3": 1}}})
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		page := render(t, Options{}, dir)
		for i, name := range names {
			if !strings.Contains(page, `"></i>`+name+` <span>`) {
				t.Errorf("%s is not listed", name)
			}
			if i > 0 && !strings.Contains(page, "Calls to "+name) {
				t.Errorf("no histogram of the calls to %s", name)
			}
		}
		if len(page) > 1<<20 {
			t.Errorf("%d bytes for 1500 steps of %d agents", len(page), len(names))
		}
	}
}

// TestBounded: the trajectories stay within the given size, and each query has all of its rollouts or is left out.
func TestBounded(t *testing.T) {
	whole := embedded(t, render(t, Options{}, fixture))
	small := embedded(t, render(t, Options{Bytes: 20000}, fixture))
	if n := len(small.Rollouts); n == 0 || n >= len(whole.Rollouts) {
		t.Errorf("%d rollouts of %d within 20000 bytes", n, len(whole.Rollouts))
	}
	tight := embedded(t, render(t, Options{Bytes: 80000}, fixture))
	for i, phase := range tight.Phases {
		if n := slices.IndexFunc(tight.Rollouts, func(r rollout) bool { return r.Phase == i }); n < 0 {
			t.Errorf("the phases before %s have used up its bytes", phase)
		}
	}
	if page := render(t, Options{Bytes: 1}, fixture); !strings.Contains(string(page), "the rollouts of one query need more than --megabytes leaves") {
		t.Error("the page does not state why it has no trajectories")
	}
	one := embedded(t, render(t, Options{Steps: 1, Queries: 1}, fixture))
	seen := map[string]bool{}
	for _, r := range one.Rollouts {
		seen[one.Phases[r.Phase]+r.Query] = true
	}
	if len(seen) != 3 { // the last step and two evaluations
		t.Errorf("queries %v, want one query from the last step and one from each of two evaluations", seen)
	}
}

func TestNoRun(t *testing.T) {
	for _, dirs := range [][]string{nil, {t.TempDir()}, {"testdata/absent"}, {"report_test.go"}} {
		if _, err := Open(dirs); err == nil {
			t.Errorf("%v: no error", dirs)
		}
	}
}

func TestCredentialsAreLeftOut(t *testing.T) {
	dir := copyRun(t)
	edit(t, filepath.Join(dir, "config.yaml"), func(s string) string { return s + "# rediss://trainer:hunter2@10.0.0.5:6379/0\n" })
	if page := render(t, Options{}, dir); strings.Contains(page, "hunter2") || !strings.Contains(page, "10.0.0.5") {
		t.Error("the page contains the store's password, or lacks its address")
	}
}

func TestTicks(t *testing.T) {
	for _, c := range [][2]float64{{0, 1}, {0, 0}, {-3, 5}, {1e-9, 2e-9}, {1e12, 3e12}, {math.NaN(), 1}, {-math.MaxFloat64, math.MaxFloat64}, {0, math.Inf(1)}} {
		ticks := niceTicks(c[0], c[1])
		if len(ticks) < 2 || len(ticks) > 21 {
			t.Errorf("%v: ticks %v", c, ticks)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.2: "0.2", 0.6000000000000001: "0.6", 12500: "12.5k", 1e6: "1M", 2e-5: "2e-5", 150: "150"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}

// FuzzTrajectories: for any trajectory files the result is a report or an error.
func FuzzTrajectories(f *testing.F) {
	f.Add(`{"id":"q/0","query":"q","rollout":0,"tokens":[1],"sampled":[true],"log_probs":[-1e38],"turns":[{"role":"assistant","text":"x","sampled":true,"from":0,"to":1}],"advantage":1e308}`)
	f.Add(`{"id":"q/0/a/9","query":"q","rollout":-1,"turns":[{"from":0,"to":0}]}`)
	f.Add("{}\n[]\n\"")
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		folder := filepath.Join(dir, "trajectories", "step-0")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "a.jsonl"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(render(t, Options{}, dir), "</script>"); n != 2 {
			t.Fatalf("%d ends of scripts", n)
		}
	})
}

// If the argument is not a folder, the error describes the folder that was expected.
func TestOpenNowhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"nowhere": "the folder nowhere does not exist: give the folder of a run", file: "is not a folder: give the folder of a run"} {
		if _, err := Open([]string{dir}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
}
