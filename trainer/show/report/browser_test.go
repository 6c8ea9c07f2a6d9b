package report

import (
	"cmp"
	"image"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/show/report/browsertest"
)

// saved writes a page to a file and returns its address.
func saved(t *testing.T, page string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// TestBrowserReads: the script runs under the page's own policy and shows the rollout that the address names.
func TestBrowserReads(t *testing.T) {
	page := render(t, Options{}, fixture)
	data := embedded(t, page)
	want := data.Rollouts[len(data.Rollouts)-1]
	address := saved(t, page) + "#t/" + strings.Join([]string{strconv.Itoa(want.Phase), want.Query, strconv.Itoa(want.K)}, "/")
	dom := browsertest.Open(t, address).HTML()
	rollout := between(dom, `<div id="rollout">`, `<p class="scale"`)
	for _, piece := range []string{want.Query, data.Phases[want.Phase], `class="talk"`, "planner", `class="turn said"`, `class="turn read"`} {
		if !strings.Contains(rollout, piece) {
			t.Errorf("the rollout lacks %q", piece)
		}
	}
	if got := strings.Count(rollout, `<article class="talk"`); got != 1+len(want.Subs) {
		t.Errorf("%d conversations side by side, want %d", got, 1+len(want.Subs))
	}
	if n := len(regexp.MustCompile(`<option value="[^"]*">`).FindAllString(between(dom, `<select id="phase">`, "</select>"), -1)); n != len(data.Phases)+1 {
		t.Errorf("%d steps to choose from, want %d and all", n, len(data.Phases))
	}
	if count := between(dom, `role="status">`, "<"); !strings.HasSuffix(count, " of "+strconv.Itoa(len(data.Rollouts))) {
		t.Errorf("the page shows the count %q, want %d rollouts", count, len(data.Rollouts))
	}
}

// TestBrowserShades: the sampled tokens of a rollout with an advantage are coloured and have log-probs.
func TestBrowserShades(t *testing.T) {
	page := render(t, Options{}, fixture)
	for _, r := range embedded(t, page).Rollouts {
		if r.Main.Advantage == 0 {
			continue
		}
		address := saved(t, page) + "#t/" + strings.Join([]string{strconv.Itoa(r.Phase), r.Query, strconv.Itoa(r.K)}, "/")
		rollout := between(browsertest.Open(t, address).HTML(), `<div id="rollout">`, `<p class="scale"`)
		if !regexp.MustCompile(`<span class="t[^"]*" title="log p [^"]*advantage [^"]*" style="background: rgba\(`).MatchString(rollout) &&
			!regexp.MustCompile(`<span class="t[^"]*" style="background: rgba\([^"]*" title="log p [^"]*advantage `).MatchString(rollout) {
			t.Errorf("no shaded token in %.2000s", rollout)
		}
		return
	}
	t.Error("no rollout of the fixture has an advantage")
}

// TestBrowserHostile: hostile text is displayed as text and none of it runs.
func TestBrowserHostile(t *testing.T) {
	dir := copyRun(t)
	path := filepath.Join(dir, "trajectories", "step-5", "planner.jsonl")
	edit(t, path, func(s string) string {
		return regexp.MustCompile(`"role":"prompt","text":"[^"]*"`).ReplaceAllString(s,
			`"role":"prompt","text":"</script><img src=x onerror=\"document.title='owned'\"><b>bold"`)
	})
	dom := browsertest.Open(t, saved(t, render(t, Options{}, dir))).HTML()
	if title := between(dom, "<title>", "</title>"); title != "fixture – mgrpo report" {
		t.Errorf("title %q", title)
	}
	if rollout := between(dom, `<div id="rollout">`, `<p class="scale"`); strings.Contains(rollout, "<img") || !strings.Contains(rollout, "&lt;img") {
		t.Errorf("the hostile prompt is not displayed as text: %.2000s", rollout)
	}
}

// TestBrowserDraws takes a screenshot, which must have charts in both agents' colours and a shaded trajectory.
func TestBrowserDraws(t *testing.T) {
	for scheme, dark := range map[string]bool{"light": false, "dark": true} {
		picture := screenshot(t, render(t, Options{}, fixture), 1500, scheme)
		counts := colours(picture)
		if len(counts) < 100 {
			t.Errorf("%s: %d colours: the page is blank", scheme, len(counts))
		}
		agents := map[bool][2][3]uint8{false: {{0x2f, 0x6b, 0xd8}, {0xd9, 0x66, 0x0a}}, true: {{0x6c, 0x9c, 0xff}, {0xff, 0x9a, 0x4a}}}[dark]
		for i, colour := range agents {
			if counts[colour] < 200 {
				t.Errorf("%s: %d pixels in the colour of agent %d, want its curves", scheme, counts[colour], i)
			}
		}
	}
}

// TestPicture writes docs/report.png, or the file of the repository that MGRPO_PICTURE names,
// of the run that MGRPO_RUN names, with -update.
func TestPicture(t *testing.T) {
	run := os.Getenv("MGRPO_RUN")
	if !*update || run == "" {
		t.Skip("MGRPO_RUN=RUNDIR go test ./trainer/show/report -run Picture -update writes docs/report.png")
	}
	picture := screenshot(t, render(t, Options{}, run), 1560, "light")
	browsertest.Save(t, picture, cmp.Or(os.Getenv("MGRPO_PICTURE"), "docs/report.png"))
}

func screenshot(t *testing.T, page string, height int64, scheme string) image.Image {
	t.Helper()
	p := browsertest.Start(t)
	p.Screen(1280, height, scheme)
	p.Go(saved(t, page))
	return p.Picture()
}

// colours counts the pixels of each colour.
func colours(picture image.Image) map[[3]uint8]int {
	out := map[[3]uint8]int{}
	b := picture.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			r, g, b, _ := picture.At(x, y).RGBA()
			out[[3]uint8{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)}]++
		}
	}
	return out
}

func between(s, from, to string) string {
	_, s, _ = strings.Cut(s, from)
	s, _, _ = strings.Cut(s, to)
	return s
}
