package phases

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/roofline"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// The roofline model, with the rates that the kernels suite measured on a machine, predicts the
// times of the phases suites on that machine within 26.5 %.
func TestRoofline(t *testing.T) {
	compared := 0
	for suite := range phases {
		for _, r := range results(t, suite+"-*.json") {
			for _, kernels := range results(t, "kernels-*.json") {
				if !sameProcessor(kernels.Machine, r.Machine) {
					continue
				}
				for _, b := range casesOf(suite, false) {
					// The aim is 25 %. The rest is for separate passes over heads, which the
					// program still made when these times were measured.
					compared += b.comparePrediction(t, r, 0.265, func(c measure.Ceilings) (roofline.Device, error) {
						return roofline.Processor(kernels, c, r.Machine.ISA)
					})
				}
			}
		}
	}
	if compared < 22 {
		t.Errorf("%d rows were compared, but docs/roofline.md names 22", compared)
	}
}

// launchBound names the rows with many short launches, which the model of a GPU predicts less well.
var launchBound = []string{"rollout qwen3-1.7b", "rollout qwen3-0.6b", "learner qwen3-0.6b-small"}

// With the rates of a GPU's data sheet, the model predicts the measured times within 20 %, and the rows of launchBound within 28 %.
func TestRooflineGPU(t *testing.T) {
	compared := 0
	for suite := range phases {
		for _, r := range results(t, suite+"-nvidia-h100-*.json") {
			for _, b := range gpuCases(suite) {
				most := 0.2
				if slices.Contains(launchBound, b.suite+" "+b.name) {
					most = 0.28
				}
				compared += b.comparePrediction(t, r, most, func(measure.Ceilings) (roofline.Device, error) { return roofline.GPU("H100") })
			}
		}
	}
	if compared < 7 {
		t.Errorf("%d rows were compared, but docs/roofline.md names seven", compared)
	}
}

// The memory plan of an update on a GPU is not below the measured peak, and the peak uses at least 90 % of it.
func TestPlanOnGPU(t *testing.T) {
	compared := 0
	for _, r := range results(t, "learner-nvidia-h100-*.json") {
		for _, b := range gpuCases("learner") {
			i := slices.IndexFunc(r.Rows, b.row().SameCase)
			if i < 0 {
				continue
			}
			compared++
			planned, err := b.plannedBytes()
			if err != nil {
				t.Fatal(err)
			}
			share := float64(r.Rows[i].Providers[0].PeakExtraBytes) / float64(planned)
			t.Logf("%s: %.3f of the plan", b.name, share)
			if share < 0.9 || share > 1 {
				t.Errorf("%s took %.3f of the plan", b.name, share)
			}
		}
	}
	if compared < 3 {
		t.Errorf("%d rows were compared, want three", compared)
	}
}

// results reads the results of a pattern of file names.
func results(t *testing.T, pattern string) (all []*measure.Results) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "results", pattern))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		r, err := measure.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// sameProcessor reports whether two results come from the same kind of CPU. Clouds use one name
// for different processors, which differ in cache size.
func sameProcessor(a, b measure.Machine) bool {
	return a.GPU+b.GPU == "" && a.CPU == b.CPU && a.Cores == b.Cores && a.L3Bytes == b.L3Bytes
}

// The model counts the same operations as the floors of the suites, which use different formulas.
func TestRooflineFLOPs(t *testing.T) {
	inf := math.Inf(1)
	d := roofline.Device{Read: inf, Copy: inf, FP32: 1, BF16: 1, Prompts16: 1, Few32: 1, Few16: 1, Attention: 1, Cached: inf, Recurrence: inf, TrainedRecurrence: inf, States: inf, Link: inf}
	for _, c := range []arch.Config{small.config, qwen3Small.config, experts.config} {
		s := shape{prompts: 3, rollouts: 5, promptTokens: 40, newTokens: 20}
		b := bench{weights: network{config: c}, shape: s}
		step := roofline.Floor(d, b.agent(), b.work())
		rollout := step.Of(roofline.Prompts).Seconds() + step.Of(roofline.Decoding).Seconds()
		for name, x := range map[string]struct{ got, want float64 }{
			"rollout": {rollout, rolloutFLOPs(c, s, 0).Value},
			"learner": {step.Of(roofline.Learning).Seconds(), learnerFLOPs(c, s, 0).Value},
		} {
			if math.Abs(x.got/x.want-1) > 1e-9 {
				t.Errorf("%s of %d layers: %.9g operations, but the floor has %.9g", name, c.Layers, x.got, x.want)
			}
		}
	}
}

// comparePrediction checks that the model predicts the case's row within `most`, and returns 1.
// If the results have no such row, it returns 0.
func (b bench) comparePrediction(t *testing.T, r *measure.Results, most float64, device func(measure.Ceilings) (roofline.Device, error)) int {
	want := b.row()
	for _, row := range r.Rows {
		if row.Name != want.Name || row.Shape != want.Shape {
			continue
		}
		ceilings := r.Ceilings
		if row.Ceilings != nil {
			ceilings = *row.Ceilings
		}
		d, err := device(ceilings)
		if err != nil {
			t.Fatal(err)
		}
		step := roofline.Floor(d, b.agent(), b.work())
		for _, p := range row.Providers {
			if p.Name != measure.Ours {
				continue
			}
			model := b.share(step)
			t.Logf("%s %s: measured %.3f s, model %.3f s, %.2f: %+v", b.suite, b.name, p.Median, model, model/p.Median, step.Parts)
			if math.Abs(model/p.Median-1) > most {
				t.Errorf("%s %s: measured %.3f s, predicted %.3f s", b.suite, b.name, p.Median, model)
			}
		}
		return 1
	}
	return 0
}

// share returns the time of the part of a step that the suite measures.
func (b bench) share(s roofline.Step) float64 {
	rollout := s.Of(roofline.Prompts).Seconds() + s.Of(roofline.Decoding).Seconds()
	switch b.suite {
	case "rollout":
		return rollout
	case "learner":
		return s.Total().Seconds() - rollout
	}
	return s.Total().Seconds()
}

func (b bench) work() roofline.Work {
	return roofline.Work{Prompts: b.shape.prompts, Rollouts: b.shape.rollouts, Prompt: b.shape.promptTokens, Turns: 1, Sampled: b.shape.newTokens}
}

func (b bench) agent() roofline.Agent {
	a := roofline.Agent{Arch: b.weights.config, Weight: 4, MicroBatch: b.shape.microTokens(), Epochs: 1, Updates: 1, Slots: b.shape.sequences()}
	if b.weights.file != "" {
		a.Arch = llama(30, 576, 9, 3, 1536, 49152) // SmolLM2-135M
	}
	if b.precision != full {
		a.Weight, a.Rounded = 2, true
	}
	a.Trained = a.Arch.Parameters()
	if r := int64(b.weights.rank); r > 0 {
		a.Adapts, a.Trained = true, adapters(a.Arch, r)
	}
	return a
}

// adapters returns the parameters of adapters with rank r on every linear map of a dense model.
func adapters(c arch.Config, r int64) (n int64) {
	for _, tensor := range c.Layout().Tensors() {
		if len(tensor.Shape) == 2 && tensor.Shape[0] != int64(c.VocabSize) {
			n += r * (tensor.Shape[0] + tensor.Shape[1])
		}
	}
	return n
}
