package dashboard_test

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/show/report/browsertest"
)

var update = flag.Bool("update", false, "rewrite docs/live.png from a run of MGRPO_STEPS steps")

// gate is an observer that stops a run during the rollouts of its last step, until open is closed.
type gate struct {
	agent string // the run stops when this agent has ended
	done  int    // this number of conversations
	steps int64  // number of steps of the run
	open  chan struct{}
}

func (g gate) Progress(p metrics.Progress) {
	if p.Agent == g.agent && p.Activity == metrics.RollOut && p.Version == g.steps-1 && p.Done >= g.done {
		<-g.open
	}
}
func (gate) Report(metrics.Record) {}
func (gate) Note(metrics.Note)     {}

// small makes the quickstart as short as possible while the page still has all its parts.
var small = []string{"run.checkpoint_every=100", "task.queries_per_step=2", "grpo.rollouts=4", "eval.every=1", "eval.queries=2", "eval.samples=2",
	"cold_start.queries=64", "agents.planner.cold_start.steps=60", "agents.researcher.cold_start.steps=60"}

// TestBrowserSeesTheRun: Chromium shows the page while a team trains. Its console stays empty,
// and every value on the page equals the value in metrics.jsonl.
func TestBrowserSeesTheRun(t *testing.T) {
	sets, steps, held := small, "3", gate{agent: "planner", done: 4}
	if given := os.Getenv("MGRPO_STEPS"); *update && given != "" {
		sets, steps = []string{"cold_start.queries=1024", "eval.queries=48", "eval.every=4"}, given
		held = gate{agent: "researcher", done: 100} // rollouts of the planner are in flight then
	}
	dir := t.TempDir()
	cfg, err := config.Load("../../../examples/quickstart/team.yaml", slices.Concat(sets, []string{"run.dir=" + dir, "run.steps=" + steps,
		"health.address=127.0.0.1:0"}))
	if err != nil {
		t.Fatal(err)
	}
	held.steps, held.open = cfg.Run.Steps, make(chan struct{})
	ended := make(chan error, 1)
	console, out := io.Pipe()
	go func() {
		defer out.Close()
		err := trainer.TrainAndReport(t.Context(), cfg, trainer.TrainOptions{Observer: held}, out)
		if errors.Is(err, trainer.ErrNothingTrained) {
			err = nil
		}
		ended <- err
	}()
	url := pageOf(console)
	if url == "" {
		t.Fatalf("the console has no address of the page; the run ended with %v", <-ended)
	}
	t.Run("during the run", func(t *testing.T) { // the browser ends before the run does
		defer close(held.open)
		b := browsertest.Start(t)
		b.Screen(1280, 1500, "light")
		b.RunOnLoad(curvesOf)
		b.Go(url)
		for _, agent := range cfg.AgentNames() {
			b.Until(fmt.Sprintf(`curves().Memory?.[%q]?.some((p) => p[0] === %d)`, agent, cfg.Run.Steps-1))
		}
		phase := fmt.Sprintf("step-%d", cfg.Run.Steps-1)
		b.Until(fmt.Sprintf(`document.querySelector("#team .doing b").textContent === %q && document.querySelector("#team progress") !== null`, phase))
		b.Until(fmt.Sprintf(`document.querySelector("#rollouts .lead")?.textContent.startsWith(%q)`, phase))
		compare(t, b, dir, cfg.AgentNames())
		answered(t, b)
		b.Quiet()
		if *update {
			browsertest.Save(t, b.Picture(), "docs/live.png")
		}
	})
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// pageOf reads a run's console until the address of its page, which it returns, and discards the rest. It returns "" if the console
// ends before.
func pageOf(console io.Reader) string {
	for lines := bufio.NewScanner(console); lines.Scan(); {
		if _, url, found := strings.Cut(lines.Text(), "the page of the run: "); found {
			go io.Copy(io.Discard, console)
			return url
		}
	}
	return ""
}

// answered waits until the page shows the main agent's answer in a rollout.
func answered(t *testing.T, b *browsertest.Page) {
	t.Helper()
	b.Until(`[...document.querySelectorAll("#rollouts article .who")].some((e) => e.textContent === "answer")`)
}

// compare checks that the page's charts and facts equal metrics.jsonl.
func compare(t *testing.T, b *browsertest.Page, dir string, agents []string) {
	t.Helper()
	log, err := metrics.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	shown := browsertest.Eval[map[string]map[string][][]float64](b, "curves()")
	// Charts that do not depend on what the agents learned.
	for _, title := range []string{"Reward", "Valid format", "Trajectory length", "Rollout throughput", "Memory"} {
		if len(shown[title]) == 0 {
			t.Errorf("the page has no chart of %s", title)
		}
	}
	for title, of := range map[string][2]string{
		"Reward": {metrics.KindStep, "reward_mean"}, "Held-out accuracy": {metrics.KindEval, "accuracy"}, "Valid format": {metrics.KindStep, "format_valid"},
		"Trajectory length": {metrics.KindStep, "tokens_mean"}, "Entropy": {metrics.KindStep, "entropy_mean"}, "Rollout throughput": {metrics.KindStep, "rollout_tokens_per_second"},
		"Learning throughput": {metrics.KindStep, "learn_tokens_per_second"},
	} {
		for _, agent := range agents {
			var want []string
			for _, l := range log.Records {
				if v, ok := l.Values[of[1]]; ok && l.Kind == of[0] && l.Agent == agent {
					want = append(want, fmt.Sprintf("%d %.4g", l.Step, v))
				}
			}
			var got []string
			for _, p := range shown[title][agent] {
				got = append(got, fmt.Sprintf("%v %.4g", p[0], p[1]))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s of %s: the page shows %v, metrics.jsonl has %v", title, agent, got, want)
			}
		}
	}
	for _, agent := range agents {
		var last metrics.Line
		for _, l := range log.Records {
			if l.Kind == metrics.KindStep && l.Agent == agent {
				last = l
			}
		}
		facts := browsertest.Eval[map[string]float64](b, fmt.Sprintf(`Object.fromEntries([...document.querySelectorAll("#team [aria-label=%s] [data-value]")].map((e) => [e.dataset.name, Number(e.dataset.value)]))`, agent))
		for name, v := range facts {
			if want := last.Values[name]; v != want {
				t.Errorf("%s of %s: the page shows %v, metrics.jsonl has %v", name, agent, v, want)
			}
		}
		if len(facts) < 3 {
			t.Errorf("facts of %s: got %v, want 3 or more", agent, facts)
		}
	}
}

// TestBrowserHostile: markup that agents write appears as text on the page. The page fits the width of a phone and follows the browser's
// colour scheme.
func TestBrowserHostile(t *testing.T) {
	const evil = `</div></script><img src=x onerror="document.title='owned'"><b>bold</b>`
	team := start(t, "")
	for _, agent := range agents {
		team[agent].run(t, agent)
	}
	if err := outcome(t, team, 0, evil+strings.Repeat("x", 2500), []string{evil, "a word"}); err != nil {
		t.Fatal(err)
	}
	b := browsertest.Start(t)
	b.Screen(360, 800, "dark")
	b.Go(team["researcher"].url)
	b.Until(`document.querySelector("#rollouts article") !== null && document.querySelector("#report svg.chart") !== null`)
	texts := browsertest.Eval[[]string](b, `[...document.querySelectorAll("#rollouts .what")].map((e) => e.textContent)`)
	if want := []string{"task " + evil, evil, "task a word", "a word", evil + strings.Repeat("x", 2000-len(evil)) + "…"}; !slices.Equal(texts, want) {
		t.Errorf("the page shows %q, want %q", texts, want)
	}
	if n := browsertest.Eval[int](b, `document.querySelectorAll("img, #rollouts script, #rollouts b").length`); n != 0 {
		t.Errorf("the page has %d elements from agents' texts, want 0", n)
	}
	if title := browsertest.Eval[string](b, "document.title"); title != "watched – mgrpo" {
		t.Errorf("got title %q, want %q", title, "watched – mgrpo")
	}
	if wide := browsertest.Eval[int](b, "document.documentElement.scrollWidth"); wide > 360 {
		t.Errorf("the page is %d pixels wide, want at most 360", wide)
	}
	colour := func() string { return browsertest.Eval[string](b, "getComputedStyle(document.body).backgroundColor") }
	dark := colour()
	b.Screen(360, 800, "light")
	if light := colour(); dark != "rgb(19, 21, 25)" || light != "rgb(246, 246, 243)" {
		t.Errorf("got background %s for dark and %s for light, want rgb(19, 21, 25) and rgb(246, 246, 243)", dark, light)
	}
	b.Quiet()
}

// curvesOf defines the function curves, which returns the points of the page's charts, by chart and agent.
const curvesOf = `globalThis.curves = () => Object.fromEntries([...document.querySelectorAll("#report figure")].filter((f) => f.querySelector("svg.chart")).map((f) =>
	[f.querySelector("figcaption b").textContent, Object.fromEntries(JSON.parse(f.querySelector("svg.chart").dataset.curves).map((c) => [c.n, c.p]))]))`
