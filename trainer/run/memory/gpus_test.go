package memory

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/arch/published"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/ranks.md")

// The sizes that a driver reports for two GPUs, in bytes, and the share that the plan may use.
const (
	gpu80, gpu141 = 81559 << 20, 143771 << 20
	usable        = 0.9
)

// TestGPUTables compares the tables of docs/ranks.md with the plan.
func TestGPUTables(t *testing.T) {
	const page = "../../../docs/ranks.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, table := range gpuTables {
		name := table.name
		begin, end := "<!-- "+name+": go test ./trainer/run/memory -run GPUTables -update -->\n", "<!-- end -->"
		before, rest, found := strings.Cut(want, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("%s has no markers for the table of %s", page, name)
		}
		want = before + begin + gpuTable(t, table.sets) + end + after
	}
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s differs from the plan: run go test ./trainer/run/memory -run GPUTables -update", page)
	}
}

// gpuTables are the tables of docs/ranks.md, with the agents' settings.
var gpuTables = []struct {
	name string
	sets []string
}{
	{"every weight", nil},
	{"state in the host", []string{"agents.a.optimizer_state=host"}},
	{"servers sample", []string{onServers, "agents.a.optimizer_state=host"}},
	{"no whole model", []string{onServers, "agents.a.optimizer_state=host", "agents.a.shard=full"}},
	{"adapters", []string{"agents.a.lora={r: 32, targets: [q_proj, k_proj, v_proj, o_proj]}"}},
}

const onServers = `agents.a.engine={kind: vllm, url: ["http://h:1"], weights: {path: w}, micro_batch_tokens: 8192, checkpoint_activations: true}`

func gpuTable(t *testing.T, sets []string) string {
	var out strings.Builder
	fmt.Fprintln(&out, "| Qwen3 | parameters | 1 GPU | 2 GPUs | 4 GPUs | 8 GPUs |\n|---|---|---|---|---|---|")
	for _, m := range published.Qwen3 {
		c := m.Arch.WithDefaults()
		fmt.Fprintf(&out, "| %s | %.1fB |", strings.TrimPrefix(m.Name, "Qwen3-"), float64(c.Parameters())/1e9)
		for _, size := range []int{1, 2, 4, 8} {
			if size == 1 && slices.Contains(sets, "agents.a.shard=full") {
				fmt.Fprint(&out, " |")
				continue
			}
			most := fullest(t, c, size, sets)
			switch {
			case float64(most) <= usable*gpu80:
				fmt.Fprintf(&out, " %s |", Size(most))
			case float64(most) <= usable*gpu141:
				fmt.Fprintf(&out, " %s, of 141 GB |", Size(most))
			default:
				fmt.Fprintf(&out, " (%s) |", Size(most))
			}
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

// fullest returns the largest need of the `size` GPUs. The first one also samples.
func fullest(t *testing.T, c arch.Config, size int, sets []string) (most int64) {
	text := `run: {name: gpus}
task: {kind: jsonl, train: t, eval: e}
agents:
  a: {role: main, model: m, limits: {max_tokens: 8192}, engine: {slots: 32, micro_batch_tokens: 8192, checkpoint_activations: true}}
  b: {role: sub, model: m}
`
	devices := []string{}
	for rank := range size {
		devices = append(devices, fmt.Sprint("cuda:", rank))
	}
	cfg, err := config.Parse("gpus.yaml", []byte(text), append([]string{"agents.a.devices=[" + strings.Join(devices, ", ") + "]"}, sets...))
	if err != nil {
		t.Fatal(err)
	}
	a, trained := cfg.Agent("a"), c.Parameters()
	if a.Adapts() {
		layout, err := lora.New(a.LoRA.R, a.LoRA.Alpha, a.LoRA.RSLoRA, a.LoRA.Targets).Layout(c)
		if err != nil {
			t.Fatal(err)
		}
		trained = layout.Numel
	}
	needs := []Need{Count(cfg, a, Model{Arch: c, Trained: trained})}
	for rank := 1; rank < size; rank++ {
		needs = append(needs, CountFollower(cfg, a, rank, Model{Arch: c, Trained: trained}))
	}
	sums := slices.DeleteFunc(Sums(needs, nil), func(s Sum) bool { return s.Device == "cpu" })
	if len(sums) != size {
		t.Fatalf("%d of %d GPUs are used", len(sums), size)
	}
	return slices.MaxFunc(sums, func(x, y Sum) int { return int(x.Needed - y.Needed) }).Needed
}
