package roofline

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/arch/published"
)

var update = flag.Bool("update", false, "rewrite the table of docs/roofline.md")

// Compares the numbers of rows, pairs and keys with a walk over every token of the conversations.
func TestRows(t *testing.T) {
	for _, w := range []Work{
		{Prompts: 2, Rollouts: 3, Prompt: 5, Turns: 1, Sampled: 4},
		{Prompts: 1, Rollouts: 2, Prompt: 7, Turns: 3, Sampled: 3, Results: 2},
		{Prompts: 1, Rollouts: 1, Prompt: 1, Turns: 2, Sampled: 1, Results: 0},
	} {
		for _, window := range []int{0, 1, 3, 100} {
			var decoded, prompts, trained, sampled [2]float64 // rows and pairs
			count := func(into *[2]float64, position int) {
				sees := position + 1
				if window > 0 {
					sees = min(sees, window)
				}
				into[0]++
				into[1] += float64(sees)
			}
			for range w.Prompts {
				for p := range w.Prompt {
					count(&prompts, p)
					count(&trained, p)
				}
				for range w.Rollouts {
					p := w.Prompt
					for turn := range w.Turns {
						for i := range w.Sampled {
							count(&sampled, p)
							last, end := i == w.Sampled-1, turn == w.Turns-1
							if !last || !end {
								count(&trained, p)
							}
							switch {
							case !last: // its row predicts the turn's next token
								count(&decoded, p)
							case !end: // its row is computed together with the results
								count(&prompts, p)
							}
							p++
						}
						for i := 0; i < w.Results && turn < w.Turns-1; i++ {
							count(&prompts, p)
							count(&trained, p)
							p++
						}
					}
					if p != w.Length() {
						t.Errorf("%+v: a conversation has %d tokens, Length returns %d", w, p, w.Length())
					}
				}
			}
			for name, c := range map[string]struct {
				want [2]float64
				got  rows
			}{"prompts": {prompts, w.prompts(false)}, "decoded": {decoded, w.decoded()}, "trained": {trained, w.trained()}} {
				if got := [2]float64{c.got.n, c.got.pairs(window)}; got != c.want {
					t.Errorf("%+v, window %d: %s has rows and pairs %v, want %v", w, window, name, got, c.want)
				}
			}
			if got := w.decoded().keys(window); got != decoded[1] {
				t.Errorf("%+v, window %d: decoding reads %v keys, want %v", w, window, got, decoded[1])
			}
			if w.SampledTokens() != sampled[0] {
				t.Errorf("%+v: %v tokens are sampled, want %v", w, w.SampledTokens(), sampled[0])
			}
		}
	}
}

// fast returns a device on which every operation takes 0 seconds.
func fast() Device {
	inf := math.Inf(1)
	return Device{Read: inf, Copy: inf, FP32: inf, BF16: inf, Prompts16: inf, Few32: inf, Few16: inf, Attention: inf, Cached: inf, Recurrence: inf, TrainedRecurrence: inf, States: inf, Link: inf}
}

func agent(c arch.Config) Agent {
	return Agent{Arch: c, Half: true, Weight: 2, Trained: c.Parameters(), MicroBatch: 1 << 20, Epochs: 1, Updates: 1, Slots: 1}
}

// Compares a step's reads, products and launches with formulas for the whole model, which do not go layer by layer.
func TestFloorOfOneThing(t *testing.T) {
	c := published.Qwen3[2].Arch // 8B, untied
	matrices := float64(c.Parameters() - c.Layout().Vectors() - int64(c.VocabSize*c.Hidden))
	a, w := agent(c), Work{Prompts: 1, Rollouts: 1, Prompt: 1, Turns: 1, Sampled: 101}

	reads := fast()
	reads.Read = 1
	if got, want := Floor(reads, a, w).Of(Decoding).Seconds(), 100*2*matrices; got < want || got > 1.002*want {
		t.Errorf("100 passes of one row read %.4g bytes, want the bytes of the bf16 matrices, %.4g", got, want)
	}
	multiplies := fast()
	multiplies.BF16 = 1
	if got, want := Floor(multiplies, a, w).Of(Learning).Seconds(), 6*matrices*101; math.Abs(got/want-1) > 1e-9 {
		t.Errorf("learning takes %.6g operations, want 6 x matrices x tokens, %.6g", got, want)
	}
	launches := fast()
	launches.Launch = 1
	// Norms, projections, heads, attention and the gate. The last norm does not count; the head and the draw do.
	if got, want := Floor(launches, a, w).Of(Decoding).Seconds(), 100.0*float64(c.Layers*(2+4+1+1+1)+2); got != want {
		t.Errorf("decoding launches %v kernels, want %v", got, want)
	}
	moves := fast()
	moves.Copy = 1
	if got, want := Floor(moves, a, w).Of(Optimizer).Seconds(), 38*float64(c.Parameters()); got != want {
		t.Errorf("the optimizer moves %v bytes, want %v", got, want)
	}
	hybrid := c
	hybrid.Family, hybrid.GatedDelta = arch.Qwen35, &arch.GatedDelta{KeyHeads: 2, ValueHeads: 4, KeyDim: 8, ValueDim: 16, Width: 4, Layers: make([]bool, c.Layers)}
	for i := range hybrid.GatedDelta.Layers {
		hybrid.GatedDelta.Layers[i] = i%4 != 3
	}
	hybrid = hybrid.WithDefaults()
	states := fast()
	states.States = 1
	several := agent(hybrid)
	several.Slots = 6
	// In each of 100 passes, each of six conversations reads and writes its states.
	if got, want := Floor(states, several, Work{Prompts: 2, Rollouts: 3, Prompt: 1, Turns: 1, Sampled: 101}).Of(Decoding).Seconds(), 100.0*6*8*(27*4*8*16); got != want {
		t.Errorf("decoding moves %v bytes of states, want %v", got, want)
	}
	a.Remote = true
	moves.Link = 1
	if got, want := Floor(moves, a, w).Of(Publishing).Seconds(), 4*float64(c.Parameters()); got != want {
		t.Errorf("publishing moves %v bytes, want %v", got, want)
	}
}

// A processor that rounds rows to bf16 multiplies at the bf16 rate only if both run.matmul and the weights are bf16.
func TestRoundedGeneration(t *testing.T) {
	d := Device{FP32: 1, Few32: 2, Prompts16: 3, Few16: 4, RoundedPrompts16: 5, RoundedFew16: 6}
	for _, c := range []struct {
		weight       float64
		rounded, few bool
		want         float64
	}{{2, true, false, 5}, {2, true, true, 6}, {2, false, false, 3}, {2, false, true, 4}, {4, true, false, 1}, {4, true, true, 2}, {0.6, true, false, 3}, {0.6, true, true, 4}} {
		if got := (Agent{Weight: c.weight, Rounded: c.rounded}).generation(d, c.few); got != c.want {
			t.Errorf("%+v: rate %v", c, got)
		}
	}
	if got := (Agent{Weight: 2, Rounded: true}).generation(Device{Prompts16: 3, Few16: 4}, true); got != 4 {
		t.Errorf("a device that does not round has rate %v", got)
	}
}

// Options that make a step slower or faster change its floor in that direction.
func TestFloorOrder(t *testing.T) {
	d, err := GPU("H200")
	if err != nil {
		t.Fatal(err)
	}
	w := Work{Prompts: 4, Rollouts: 8, Prompt: 300, Turns: 3, Sampled: 100, Results: 200}
	base := agent(published.Qwen3[1].Arch)
	base.Slots, base.MicroBatch = 32, 8192
	total := func(change func(*Agent)) float64 {
		a := base
		change(&a)
		return Floor(d, a, w).Total().Seconds()
	}
	plain := total(func(*Agent) {})
	for name, change := range map[string]func(*Agent){
		"activations are computed again": func(a *Agent) { a.Checkpoint = true },
		"fewer slots":                    func(a *Agent) { a.Slots = 8 },
		"old log-probs":                  func(a *Agent) { a.Observed = 1 },
		"two epochs":                     func(a *Agent) { a.Epochs, a.Updates = 2, 2 },
		"small micro-batches":            func(a *Agent) { a.MicroBatch = 512 },
		"fp32":                           func(a *Agent) { a.Half, a.Weight = false, 4 },
	} {
		if got := total(change); got <= plain {
			t.Errorf("%s: %.3f s, without %.3f s", name, got, plain)
		}
	}
	for name, change := range map[string]func(*Agent){
		"frozen":   func(a *Agent) { a.Trained = 0 },
		"adapters": func(a *Agent) { a.Adapts, a.Trained = true, 1<<24 },
	} {
		if got := total(change); got >= plain {
			t.Errorf("%s: %.3f s, without %.3f s", name, got, plain)
		}
	}
	few, many := agent(published.Qwen3[4].Arch), agent(published.Qwen3[4].Arch)
	many.Slots = 32
	if a, b := Floor(d, few, w).Of(Decoding).Seconds(), Floor(d, many, w).Of(Decoding).Seconds(); b > a/3 || b < a/12 {
		t.Errorf("a mixture decodes one by one in %.3f s, 32 at once in %.3f s, want 3 to 12 times as fast, because 32 read more experts", a, b)
	}
}

// Two GPUs halve the time of everything except exchanges. Two processes on one GPU halve nothing and exchange as much.
func TestRanks(t *testing.T) {
	d, err := GPU("H200")
	if err != nil {
		t.Fatal(err)
	}
	w := Work{Prompts: 16, Rollouts: 8, Prompt: 1000, Turns: 4, Sampled: 250, Results: 500}
	base := agent(published.Qwen3[0].Arch)
	base.Slots, base.MicroBatch = 128, 16384
	on := func(slots int, devices ...string) Step {
		a := base
		a.Devices, a.Slots = devices, slots
		return Floor(d, a, w)
	}
	one, two, same := on(128, "cuda:0"), on(64, "cuda:0", "cuda:1"), on(64, "cuda:0", "cuda:0")
	for _, part := range []string{Prompts, Learning} {
		if a, b := one.Of(part).Seconds(), two.Of(part).Seconds(); math.Abs(b/a-0.5) > 0.02 {
			t.Errorf("%s: %v s on one GPU, %v s on two", part, a, b)
		}
		if a, b := one.Of(part).Seconds(), same.Of(part).Seconds(); math.Abs(b/a-1) > 0.02 {
			t.Errorf("%s: %v s in one process, %v s in two on one GPU", part, a, b)
		}
	}
	if a, b, c := one.Of(Decoding).Seconds(), two.Of(Decoding).Seconds(), same.Of(Decoding).Seconds(); !(b < 0.8*a && b > 0.5*a && math.Abs(c-2*b) < 0.02*c) {
		t.Errorf("decoding: %v s on one GPU, %v s on two, %v s in two processes on one: each pass reads the weights", a, b, c)
	}
	// Each of 13 micro-batches exchanges a gradient of 2 bytes per element, and the update
	// exchanges weights of 2 bytes per element. Half of each goes out and half comes in.
	batches := math.Ceil(w.share(1, 2).trained().n / 16384)
	if want := 2 * (2*batches + 2) * float64(base.Trained) / 2 / d.Link; math.Abs(two.Of(Exchange).Seconds()/want-1) > 1e-9 || one.Of(Exchange).Seconds() != 0 {
		t.Errorf("exchange: %v s, want %v s, and none of one process: %v s", two.Of(Exchange).Seconds(), want, one.Of(Exchange).Seconds())
	}
	if few := (Work{Prompts: 1, Rollouts: 8}).share(1, 4); few.Sequences() != 2 {
		t.Errorf("one of four ranks has %v of the 8 rollouts of a query", few.Sequences())
	}
}

// A step takes as long as the slowest device, even if that is only slightly slower.
func TestLongestDevice(t *testing.T) {
	step := func(device string, seconds float64) Step {
		return Step{Agent: Agent{Name: device, Devices: []string{device}, Arch: published.Qwen3[0].Arch}, Parts: []Part{{Name: "decoding", Time: Time{Bytes: seconds}}}}
	}
	var out strings.Builder
	Write(&out, GPUs[0], []Step{step("cuda:0", 0.3), step("cuda:1", 0.9), step("cuda:0", 0.2)})
	if want := "a step takes at least 900ms, on cuda:1"; !strings.Contains(out.String(), want) {
		t.Errorf("%s\nwant: %s", out.String(), want)
	}
}

func TestUnknownDevices(t *testing.T) {
	if _, err := GPU("v100"); err == nil || !strings.Contains(err.Error(), "h100, h200, b200") {
		t.Errorf("v100: %v", err)
	}
	if _, err := Processor(&measure.Results{Suite: "rollout"}, measure.Ceilings{}, "avx2"); err == nil || !strings.Contains(err.Error(), "mgrpo bench kernels") {
		t.Errorf("results of another suite were accepted, with error %v", err)
	}
	if _, err := Processor(&measure.Results{Suite: "kernels"}, measure.Ceilings{}, "avx2"); err == nil || !strings.Contains(err.Error(), "no row") {
		t.Errorf("results without rows: %v", err)
	}
}

// The table in docs/roofline.md matches the numbers of the code.
func TestDocument(t *testing.T) {
	const path, begin, end = "../../docs/roofline.md", "<!-- table: go test ./bench/roofline -update -->\n\n", "\n<!-- end of table -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no table between %q and %q", path, begin, end)
	}
	want := before + begin + table() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text) != want {
		t.Errorf("%s is out of date: go test ./bench/roofline -update", path)
	}
}

// table returns the table of docs/roofline.md, for 16 queries with 8 rollouts that all sample at once.
func table() string {
	w := Work{Prompts: 16, Rollouts: 8, Prompt: 1000, Turns: 4, Sampled: 250, Results: 500}
	var b strings.Builder
	b.WriteString("| model | GPU | prompts | decoding | learning | optimizer | a step | tokens sampled a second |\n|---|---|---|---|---|---|---|---|\n")
	for _, p := range published.Qwen3 {
		for _, d := range GPUs {
			a := agent(p.Arch)
			a.Slots, a.MicroBatch, a.Checkpoint = 128, 16384, true
			s := Floor(d, a, w)
			rollout := s.Of(Prompts).Seconds() + s.Of(Decoding).Seconds()
			fmt.Fprintf(&b, "| %s | %s |", p.Name, d.Name)
			for _, part := range []string{Prompts, Decoding, Learning, Optimizer} {
				fmt.Fprintf(&b, " %.2f s |", s.Of(part).Seconds())
			}
			fmt.Fprintf(&b, " %.1f s | %.0f |\n", s.Total().Seconds(), w.SampledTokens()/rollout)
		}
	}
	return b.String()
}
