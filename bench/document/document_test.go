package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/phases"
	"github.com/mgrpo/mgrpo/bench/store"
)

var root = filepath.Join("..", "..")

func TestCurrent(t *testing.T) {
	files, err := document(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != want {
			t.Errorf("%s differs from the results in bench/results (%v): run go run ./bench/document", name, err)
		}
	}
}

// A row that is faster than the least possible time has a wrong floor, unless its inputs may have been in the cache or the reason is known.
func TestFloors(t *testing.T) {
	machines, err := readMachines(filepath.Join(root, "bench", "results"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		for _, r := range m.Results {
			for _, row := range r.Rows {
				if beatsFloor(row, r.Machine) && about(remarks.Fast, row.Suite+" "+row.Name, "") == "" {
					t.Errorf("%s: %s %s, %s: %.0f %% of the floor, and no reason is given", m.Slug, r.Suite, row.Name, row.Shape, row.Of(measure.Ours).PercentOfFloor)
				}
			}
		}
	}
}

func row(shape string, ours, peer float64) measure.Row {
	r := measure.Row{Suite: "kernels", Name: "group_advantage", Shape: shape, DType: "float32", Cache: measure.Cold, Bytes: measure.Amount{Value: 1e6}, FLOPs: measure.Amount{Value: 1e5},
		Targets: []measure.Target{{Kind: measure.Faster, Peer: "torch-eager", Bound: 3, Text: "3 times as fast"}},
		Providers: []measure.Result{{Name: measure.Ours, Status: "ok", Quantiles: measure.Quantiles{Median: ours}, PeakExtraBytes: 1 << 20},
			{Name: "torch-eager", Status: "ok", Quantiles: measure.Quantiles{Median: peer}, PeakExtraBytes: 1 << 21},
			{Name: "torch-compile", Status: "no compiler"}}}
	r.Finish(measure.Ceilings{Copy: measure.Quantiles{Median: 10}, GEMM: measure.Quantiles{Median: 100}})
	return r
}

// benchmarks returns docs/benchmarks.md with one machine.
func benchmarks(t *testing.T, m *machine) string {
	t.Helper()
	got, err := text("benchmarks.md.tmpl", machines{m})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A machine of two rows: one target met and one missed, one comparison lost.
func TestText(t *testing.T) {
	m := &machine{Slug: "x", Results: []*measure.Results{{Suite: "kernels", Machine: measure.Machine{CPU: "A & B", Cores: 2},
		Ceilings: measure.Ceilings{Copy: measure.Quantiles{Median: 10}, GEMM: measure.Quantiles{Median: 100}, GEMMBF16: measure.Quantiles{Median: 7}},
		Rows:     []measure.Row{row("80 rewards in 10 groups", 1e-3, 5e-3), row("800 rewards in 100 groups", 2e-3, 1e-3)}}}}
	missed := remarks.Missed
	remarks.Missed = append(slices.Clone(missed), remark{[]string{"kernels group_advantage"}, []measure.Kind{measure.Faster}, "Because."})
	defer func() { remarks.Missed = missed }()
	got := benchmarks(t, m)
	for _, want := range []string{
		"| 3 times as fast | 5 | met |", "| 3 times as fast | 0.5 | missed (1) |\n\n1. Because.\n", "Faster in 1 of 2 comparisons",
		"| group_advantage, 800 rewards in 100 groups | cold | torch-eager | 0.50 |", "10 % of memory copy", " failed |",
		"torch-compile: no compiler", "## Not yet measured on a GPU\n", "| 100, 7 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// Being faster than emulated bf16 is not a win and meets no target; being slower is a loss.
func TestEmulated(t *testing.T) {
	slow := measure.Ceilings{Copy: measure.Quantiles{Median: 10}, GEMM: measure.Quantiles{Median: 100}, GEMMBF16: measure.Quantiles{Median: 1}}
	able := slow
	able.GEMMBF16.Median = 200
	for _, c := range []struct {
		name, peer string
		ceilings   measure.Ceilings
		emulated   bool
	}{{"emulated", "", slow, true}, {"peer in float32", "float32", slow, false}, {"the machine has bf16", "", able, false}} {
		r := row("80 rewards in 10 groups", 1e-3, 5e-3)
		r.DType, r.PeerDType, r.Ceilings = "bfloat16", c.peer, &c.ceilings
		lost := row("800 rewards in 100 groups", 2e-3, 1e-3)
		lost.DType, lost.PeerDType, lost.Ceilings = r.DType, r.PeerDType, r.Ceilings
		got := benchmarks(t, &machine{Slug: "x", Results: []*measure.Results{{Suite: "kernels", Rows: []measure.Row{r, lost}}}})
		for want, is := range map[string]bool{
			"| 5.00, bf16 emulated |": c.emulated, "not counted: the peer's bf16 is emulated": c.emulated, "Faster in 0 of 1 comparisons. 1 more": c.emulated,
			"| 5.00 |": !c.emulated, "| 5 | met |": !c.emulated, "Faster in 1 of 2 comparisons.": !c.emulated,
			"| group_advantage, 800 rewards in 100 groups | cold | torch-eager | 0.50 |": true,
		} {
			if strings.Contains(got, want) != is {
				t.Errorf("%s: %q is in the text: %v\n%s", c.name, want, !is, got)
			}
		}
	}
}

// A GPU is named, and reasons of processors are not given for it.
func TestGPU(t *testing.T) {
	r := row("80 rewards in 10 groups", 1e-3, 1e-3)
	m := &machine{Slug: "x", Results: []*measure.Results{{Suite: "kernels", Machine: measure.Machine{CPU: "A & B", Cores: 16, GPU: "Chip 9", Driver: "13.0"}, Rows: []measure.Row{r}}}}
	got := benchmarks(t, m)
	for _, want := range []string{"## Chip 9\n", "The driver supports CUDA 13.0. The processor is A & B with 16 cores", "| 3 times as fast | 1 | missed |"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	const unmeasured = "| rollout: qwen3-1.7b, "
	if !strings.Contains(got, unmeasured) {
		t.Error("a case that no GPU has is not listed")
	}
	m.Results = append(m.Results, &measure.Results{Suite: "rollout", Rows: phases.OnGPU("rollout")})
	if strings.Contains(benchmarks(t, m), unmeasured) {
		t.Error("a case is listed that a GPU has")
	}
}

// The kernels of bench/gpu/first.py: one with PyTorch, one alone, one that is wrong, and one that failed.
func TestHotKernels(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("hot-x.json", `{"copy_bytes_per_second": 3e12, "cases": [
		{"name": "swiglu", "error": 0.0017, "ok": true, "us": 50, "floor_us": 40, "x_floor": 1.25, "eager_us": 100},
		{"name": "adamw", "error": 1e-8, "ok": true, "us": 1350, "floor_us": 1350, "x_floor": 1},
		{"name": "heads", "error": 0.5, "ok": false, "us": 1, "x_floor": 1}, {"name": "sample", "ok": false, "failed": "status 2"}]}`)
	if h, err := readHotKernels(dir, "x"); h != nil || err != nil {
		t.Errorf("without the call: %+v, %v", h, err)
	}
	write("call-x.json", `{"begun": "2026-11-27 22:28:11", "driver": "580", "program": "mgrpo     v1", "torch": "2.11.0"}`)
	h, err := readHotKernels(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	got, err := text("hot kernels", h)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"on 2026-11-27 22:28:11 UTC with mgrpo v1, PyTorch 2.11.0 and driver 580.", "a copy (3.00 TB/s)", "norm.\n\n| kernel |",
		"| swiglu | 2e-03 | 50 µs | 1.25 | 100 µs | 2.00 |", "| adamw | 1e-08 | 1.35 ms | 1.00 |  |  |", "| heads | wrong:  |", "| sample | wrong: status 2 |"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	write("hot-x.json", "{")
	if _, err := readHotKernels(dir, "x"); err == nil || !strings.Contains(err.Error(), "hot-x.json") {
		t.Errorf("a broken file: %v", err)
	}
}

// A machine that measured the store alone: a target met, one missed, and a load at which none is aimed.
func TestStore(t *testing.T) {
	load := func(withTLS bool, rate, p99 float64, memory ...float64) store.LoadResult {
		return store.LoadResult{Load: store.Load{TLS: withTLS, Workers: 999, Clients: 2, Rate: rate, Seconds: 60}, PerSecond: rate, ExchangeP99: p99, RedisMemory: memory}
	}
	m := &machine{Slug: "x", Store: &store.Results{Machine: measure.Machine{CPU: "A & B", Cores: 2}, Settings: []string{"--save", "", "--appendonly", "yes"},
		Costs: []store.Cost{{What: "rollout", RoundTrips: 9, Up: 3400, Down: 1500}, {What: "Call", TLS: true, P50: 0.004, P99: 0.01}},
		Loads: []store.LoadResult{load(false, store.TargetRate, 0.015, 1, 1, 1), load(true, store.TargetRate, 0.025, 1, 1, 1), load(false, 5000, 0.025, 1, 1, 1)}}}
	got := benchmarks(t, m)
	for _, want := range []string{
		"one Redis, without TLS | 10000 invocations/s, p99 < 20 ms, memory flat | 10000/s, p99 15 ms, memory flat | met |",
		"one Redis, with TLS | 10000 invocations/s, p99 < 20 ms, memory flat | 10000/s, p99 25 ms, memory flat | missed (1) |", "\n1. All invocations",
		"| rollout, without TLS | 9.0 | 3400 | 1500 |  |  |", "| Call, with TLS |  |  |  | 4 ms | 10 ms |", "`--save \"\" --appendonly yes`",
		"| 999 workers in 2 processes, without TLS, 60 s | 5000 | 5000 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "memory flat | met") + strings.Count(got, "memory flat | missed"); n != 2 {
		t.Errorf("%d targets", n)
	}
}

// readmeNames are the names by which README would call the models of families.
var readmeNames = map[string]string{"Llama": "llama", "Mistral": "mistral", "Qwen 2": "qwen2", "Qwen 3": "qwen3", "mixtures of Qwen": "qwen3_moe", "Gemma 3": "gemma3_text",
	"Gemma 4": "gemma4_text", "Phi": "phi3", "OLMo 2": "olmo2", "OLMo 3": "olmo3", "SmolLM3": "smollm3", "Ministral": "ministral3", "Granite": "granite", "HunYuan": "hunyuan_v1_dense",
	"EXAONE": "exaone4", "ERNIE": "ernie4_5", "GLM": "glm4", "GPT-OSS": "gpt_oss", "gpt-oss": "gpt_oss", "Mixtral": "mixtral"}

// TestReadmeNamesFamiliesWithTokenizers holds README to families whose published tokenizer is compared.
func TestReadmeNamesFamiliesWithTokenizers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := readEvidence(root)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for name, family := range readmeNames {
		if !regexp.MustCompile(`\b` + name + `\b`).Match(text) {
			continue
		}
		named++
		if e.Tokenizers(family) == "" {
			t.Errorf("README names %s: no published tokenizer of %s was compared", name, family)
		}
	}
	if named < 3 {
		t.Errorf("README names %d families", named)
	}
}

// TestChecksNeedEvidence takes the evidence away: cells become empty.
func TestChecksNeedEvidence(t *testing.T) {
	bare := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(bare, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("bench/results/models.json", `{"transformers":{"version":"1.2","found":["olmo2"]}}`)
	write("testdata/families-2026/a/config.json", `{"model_type":"gemma3","text_config":{"model_type":"gemma3_text"}}`)
	write("testdata/families-2026/a/expected.json", `{}`)
	write("testdata/gguf/a.gguf", "")
	e, err := readEvidence(bare)
	if err != nil {
		t.Fatal(err)
	}
	table, err := text("models.md.tmpl", e)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"transformers 1.2, ", "| `gemma3_text` | 1 |  |  | gemma3 |  |  |  |  |\n", "| `olmo2` | 0 |  |  |  | yes |  |  |  |\n", "| `llama` | 0 |  |  |  |  |  |  |  |\n"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}
