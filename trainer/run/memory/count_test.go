package memory

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

const smolLM2 = 134515008 // parameters of SmolLM2-135M, as its card states

var smolLM2Shape = arch.Config{Family: "llama", VocabSize: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, FFN: 1536,
	MaxPosition: 8192, Tied: true}.WithDefaults()

// team returns a configuration of two agents. One is on the CPU.
func team(t *testing.T, sets ...string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "team.yaml")
	text := `run: {name: memory}
task: {kind: jsonl, train: t.jsonl, eval: e.jsonl, queries_per_step: 2}
agents:
  boss: {role: main, model: m, limits: {max_tokens: 1024}, engine: {micro_batch_tokens: 2048}}
  help: {role: sub, model: m, device: "cuda", limits: {max_tokens: 1024}}
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file, sets)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func count(t *testing.T, agent string, sets ...string) Need {
	t.Helper()
	cfg := team(t, sets...)
	return Count(cfg, cfg.Agent(agent), Model{Arch: smolLM2Shape, Trained: smolLM2})
}

func TestCount(t *testing.T) {
	const (
		n      = smolLM2
		rotary = 4 * 1024 * 64
		kv     = 2 * 30 * 16 * 1024 * 192 // values: keys and values, layers, slots, context, key-value width
		layer  = (n - 49152*576 - 576) / 30
	)
	for _, c := range []struct {
		name, agent string
		sets        []string
		want        map[Kind]int64 // the exactly predictable kinds
		files       int64
	}{
		{"fp32 on the CPU", "boss", nil,
			map[Kind]int64{Weights: 4*n + rotary, Master: 0, Gradients: 4 * n, Moments: 8 * n, Reference: 0, KVCache: 4 * kv, Snapshot: 12 * n}, 14 * n},
		{"a bf16 sampler", "boss", []string{"agents.boss.engine.dtype=bf16"},
			map[Kind]int64{Weights: 6*n + rotary, Master: 0, Gradients: 4 * n, KVCache: 2 * kv}, 14 * n},
		{"a cache in bf16", "boss", []string{"agents.boss.engine.cache_dtype=bf16"}, map[Kind]int64{Weights: 4*n + rotary, KVCache: 2 * kv}, 14 * n},
		{"bf16 on a GPU", "help", nil,
			map[Kind]int64{Weights: 2*n + rotary, Master: 4 * n, Gradients: 6 * n, Moments: 8 * n, KVCache: 2 * kv, Snapshot: 12 * n}, 14 * n},
		{"bf16 on a GPU, layer by layer", "help", []string{"agents.help.engine.checkpoint_activations=true"},
			map[Kind]int64{Master: 4 * n, Gradients: 2*(49152*576+576+layer) + 4*n, Moments: 8 * n}, 14 * n},
		{"frozen", "boss", []string{"agents.boss.train=false"},
			map[Kind]int64{Weights: 4*n + rotary, Gradients: 0, Moments: 0, Snapshot: 0}, 4 * n},
		{"frozen, sampled in bf16", "boss", []string{"agents.boss.train=false", "agents.boss.engine.dtype=bf16"},
			map[Kind]int64{Weights: 2*n + 4*61*576 + rotary, Master: 0, KVCache: 2 * kv}, 4 * n}, // norms are in fp32
		{"adapters, sampled in bf16", "boss", []string{"agents.boss.lora={r: 8}", "agents.boss.engine.dtype=bf16"},
			map[Kind]int64{Weights: 6*n + rotary, Master: 0}, 12 * n},
		{"frozen on a GPU", "help", []string{"agents.help.train=false"},
			map[Kind]int64{Weights: 2*n + rotary, Master: 0, Gradients: 0, Snapshot: 0}, 4 * n},
		{"adapters on a GPU", "help", []string{"agents.help.lora={r: 8}"},
			map[Kind]int64{Weights: 2*n + rotary, Master: 0, Gradients: 4 * n, Moments: 8 * n}, 12 * n},
		{"frozen after its cold start", "help", []string{"agents.help.train=false", "cold_start.demonstrations=d.jsonl", "cold_start.steps=1"},
			map[Kind]int64{Master: 4 * n, Gradients: 6 * n, Moments: 8 * n, Snapshot: 12 * n}, 4 * n},
		{"with a KL term", "boss", []string{"grpo.kl=k3"}, map[Kind]int64{Reference: 4*n + rotary}, 14 * n},
		{"adapters with a KL term", "boss", []string{"agents.boss.lora={r: 8}", "grpo.kl=k3"}, map[Kind]int64{Reference: 0}, 12 * n},
		{"adapters with a KL term against their cold start", "boss", []string{"agents.boss.lora={r: 8}", "grpo.kl=k3", "cold_start.demonstrations=d.jsonl", "cold_start.steps=1"},
			map[Kind]int64{Reference: 4 * n}, 12 * n},
		{"with a KL term on a GPU", "help", []string{"grpo.kl=k3"}, map[Kind]int64{Reference: 2*n + rotary}, 14 * n},
		{"what the optimizer keeps in the host's memory", "boss", []string{"agents.boss.device=cuda:0", "agents.boss.optimizer_state=host"},
			map[Kind]int64{Master: 4 * n, Gradients: 6 * n, Moments: 8 * n, Snapshot: 12 * n}, 14 * n},
		{"on servers", "boss", []string{"agents.boss.engine={kind: vllm, url: [\"http://h:1\"], weights: {path: w}}"}, map[Kind]int64{KVCache: 0, Moments: 8 * n}, 14 * n},
		{"fewer slots", "boss", []string{"agents.boss.engine.slots=4"}, map[Kind]int64{KVCache: kv}, 14 * n},
		{"a shorter context", "boss", []string{"agents.boss.limits.max_tokens=512"}, map[Kind]int64{KVCache: 2 * kv}, 14 * n},
		{"without saved moments", "boss", []string{"run.save_moments=false"}, map[Kind]int64{Moments: 8 * n}, 6 * n},
		{"saved in fp32", "boss", []string{"run.save_dtype=fp32"}, nil, 12 * n},
	} {
		p := count(t, c.agent, c.sets...)
		for kind, want := range c.want {
			if p.Of(kind) != want {
				t.Errorf("%s: %s is %d, want %d", c.name, kind, p.Of(kind), want)
			}
		}
		if p.Of(Activations) <= 0 || p.Files != c.files {
			t.Errorf("%s: %+v, want files of %d bytes", c.name, p, c.files)
		}
	}
	kept := count(t, "help", "agents.help.optimizer_state=host")
	if got := on(kept, "cpu"); got != 24*n { // the copy for checkpoints, and the optimizer's state
		t.Errorf("the host of a GPU has %d bytes, want %d", got, 24*n)
	}
}

// If only a few parameters are trained, only these have gradients, moments and a copy.
func TestCountOfFewTrained(t *testing.T) {
	const n, few = smolLM2, 1000
	for agent, gradients := range map[string]int64{"boss": 4 * few, "help": 6 * few} {
		cfg := team(t, "grpo.kl=k3")
		all, p := Count(cfg, cfg.Agent(agent), Model{Arch: smolLM2Shape, Trained: n}), Count(cfg, cfg.Agent(agent), Model{Arch: smolLM2Shape, Trained: few})
		for kind, want := range map[Kind]int64{Gradients: gradients, Moments: 8 * few, Snapshot: 12 * few,
			Weights: all.Of(Weights), Master: all.Of(Master), Reference: all.Of(Reference)} {
			if p.Of(kind) != want {
				t.Errorf("%s: %s is %d, want %d", agent, kind, p.Of(kind), want)
			}
		}
		if p.Files != all.Files-8*(n-few) {
			t.Errorf("%s: files of %d bytes, but %d if all parameters are trained", agent, p.Files, all.Files)
		}
	}
}

// TestCountOfConvolutions checks that a convolution layer caches hidden-size values per token instead of keys and values.
func TestCountOfConvolutions(t *testing.T) {
	cfg := team(t)
	shape := smolLM2Shape
	shape.Family, shape.ShortConv = arch.LFM2, &arch.ShortConv{Layers: make([]bool, 30), Width: 3}
	for i := range 20 {
		shape.ShortConv.Layers[i] = true
	}
	const tokens = 16 * 1024 // slots times context
	need := Count(cfg, cfg.Agent("boss"), Model{Arch: shape, Trained: shape.Parameters()})
	if got, want := need.Of(KVCache), int64(4*tokens*(20*576+10*2*192)); got != want {
		t.Errorf("the cache has %d bytes, want %d", got, want)
	}
}

// TestCountOfRecurrentStates checks that layers with a gated delta rule have float32 states for twice the slots, and no cache per token.
func TestCountOfRecurrentStates(t *testing.T) {
	cfg := team(t)
	shape := smolLM2Shape
	shape.Family, shape.GatedDelta = arch.Qwen35, &arch.GatedDelta{Layers: make([]bool, 30), KeyHeads: 4, ValueHeads: 8, KeyDim: 32, ValueDim: 16, Width: 4}
	for i := range 20 {
		shape.GatedDelta.Layers[i] = true
	}
	const tokens, slots = 16 * 1024, 16
	need := Count(cfg, cfg.Agent("boss"), Model{Arch: shape, Trained: shape.Parameters()})
	if got, want := need.Of(KVCache), int64(4*tokens*10*2*192); got != want {
		t.Errorf("the cache has %d bytes, want %d", got, want)
	}
	if got, want := need.Of(States), int64(4*2*slots*20*(8*32*16+3*(2*4*32+8*16))); got != want {
		t.Errorf("the states have %d bytes, want %d", got, want)
	}
	if !slices.ContainsFunc(need.Levers, func(l Lever) bool { return l.Key == "agents.boss.engine.slots" && l.Part.Kind == States }) {
		t.Errorf("no key lowers the states: %+v", need.Levers)
	}
}

// The recorded experts are in host memory, with 2 bytes per layer, choice and token.
func TestCountOfRoutes(t *testing.T) {
	mixture := smolLM2Shape
	mixture.Family, mixture.Mixture = "qwen3_moe", &arch.Mixture{Experts: 8, PerToken: 3, FFN: 64, Step: 2} // 15 of 30 layers
	const token = 2 * 15 * 3
	for _, c := range []struct {
		agent string
		sets  []string
		want  int64 // tokens
	}{
		{"boss", nil, (2*8 + 16) * 1024}, // trajectories of a step, and the conversations sampled at the same time
		{"boss", []string{"grpo.max_lag=2", "grpo.old=recomputed", "grpo.tis_cap=2"}, (3*2*8 + 16) * 1024},
		{"boss", []string{"agents.boss.engine.conversations=40"}, (2*8 + 40) * 1024},
		{"help", []string{"agents.help.align.d=3"}, (3*2*8 + 16) * 1024},
		{"boss", []string{"agents.boss.limits.max_new_tokens=64", "agents.boss.limits.max_turns=5", "agents.boss.limits.fold.at=512"}, (5*2*8 + 16) * 1024},
		{"boss", []string{"agents.boss.engine={kind: vllm, url: [\"http://h:1\"], weights: {path: w}}"}, 0},
	} {
		cfg := team(t, c.sets...)
		p := Count(cfg, cfg.Agent(c.agent), Model{Arch: mixture, Trained: 1000})
		if p.Of(Routes) != c.want*token || c.want > 0 && on(p, "cpu") < c.want*token {
			t.Errorf("%s %v: %d bytes, want %d", c.agent, c.sets, p.Of(Routes), c.want*token)
		}
		if dense := Count(cfg, cfg.Agent(c.agent), Model{Arch: smolLM2Shape, Trained: 1000}); dense.Of(Routes) != 0 {
			t.Errorf("%s: a model without experts has %d bytes of routes", c.agent, dense.Of(Routes))
		}
	}
}

// If an agent has several devices, each has the weights, samples, and has its share of the
// moments and, in bf16, of the summed gradient. Only the first saves.
func TestCountOfRanks(t *testing.T) {
	const (
		n     = smolLM2
		third = n / 3
	)
	cfg := team(t, "agents.boss.devices=[cpu, cpu, cpu]", "grpo.kl=k3", "grpo.kl_coef=0.1")
	boss, help := cfg.Agent("boss"), cfg.Agent("help")
	help.Devices = []string{"cuda:3", "cuda", "cuda:1"}
	for rank, device := range []string{"cuda:3", "cuda:0", "cuda:1"} {
		p := Count(cfg, help, Model{Arch: smolLM2Shape, Trained: n})
		if rank > 0 {
			p = CountFollower(cfg, help, rank, Model{Arch: smolLM2Shape, Trained: n})
		}
		if p.Device != device || p.Of(Master) != 4*third || p.Of(Gradients) != 2*n+4*third || p.Of(Moments) != 8*third || p.Of(Reference) < 2*n || p.Of(Weights) < 2*n {
			t.Errorf("rank %d: %v", rank, p)
		}
		if cache := int64(2 * 2 * 30 * 6 * 1024 * 192); p.Of(KVCache) != cache || (p.Of(Snapshot) == 0) != (rank > 0) || p.Of(Activations) == 0 {
			t.Errorf("rank %d: %v, want a cache of %d for a third of 16 rollouts", rank, p, cache)
		}
	}
	follower := CountFollower(cfg, boss, 2, Model{Arch: smolLM2Shape, Trained: n})
	if follower.Of(Gradients) != 4*n || follower.Of(Moments) != 8*third {
		t.Errorf("%v: autograd sums the whole gradient in fp32", follower)
	}
	err := Fits([]Need{CountFollower(cfg, help, 2, Model{Arch: smolLM2Shape, Trained: n})}, map[string]int64{"cuda:1": 1 << 20})
	if err == nil || !strings.Contains(err.Error(), "lower agents.help.engine.micro_batch_tokens") {
		t.Errorf("a follower without enough memory: %v", err)
	}
}

// longestLayer returns the number of elements of a layout outside the layers, and the number of elements of the longest layer.
func longestLayer(l *arch.Layout) (rest, layer int64) {
	of := map[int]int64{}
	for _, leaf := range l.Leaves {
		of[leaf.Layer] += leaf.Numel()
	}
	rest = of[0]
	delete(of, 0)
	return rest, slices.Max(slices.Collect(maps.Values(of)))
}

// With three devices, the first has 3 of 8 experts in each layer of a mixture. It has the gradients of its own experts only.
func TestCountOfDividedExperts(t *testing.T) {
	shape := smolLM2Shape
	shape.Family, shape.FFN = arch.Qwen3MoE, 0
	shape.Mixture = &arch.Mixture{Experts: 8, PerToken: 2, FFN: 512, Step: 1}
	shape = shape.WithDefaults()
	experts := int64(3 * shape.Mixture.FFN * shape.Hidden) // elements of one expert
	n := shape.Parameters()
	dense := n - int64(shape.Layers)*8*experts
	rest, layer := longestLayer(shape.Layout())
	layer -= 8 * experts
	cfg := team(t, "agents.help.devices=[cuda, cuda:1, cuda:2]",
		`agents.help.engine={kind: vllm, url: ["http://h:1"], weights: {path: w}, checkpoint_activations: true, micro_batch_tokens: 65536}`, "agents.help.shard=full")
	a := cfg.Agent("help")
	p := Count(cfg, a, Model{Arch: shape, Trained: n})
	share := dense/3 + int64(shape.Layers)*3*experts
	for what, c := range map[string]struct{ got, want int64 }{
		"moments":   {p.Of(Moments), 8 * share},
		"weights":   {p.Of(Weights), 2 * (share + rest + 2*layer)},
		"gradients": {p.Of(Gradients), 4*share + 2*(rest+layer+3*experts)},
	} {
		if over := c.got - c.want; over < 0 || over > 1<<20 { // gathered shares begin at multiples of 64, and there are rotary tables
			t.Errorf("%d bytes of %s, want %d or slightly more", c.got, what, c.want)
		}
	}
	whole := team(t, "agents.help.devices=[cuda, cuda:1, cuda:2]",
		`agents.help.engine={kind: vllm, url: ["http://h:1"], weights: {path: w}, checkpoint_activations: true, micro_batch_tokens: 65536}`)
	// With this number of tokens a layer needs more than the head.
	rows := max(int64(a.Engine.MicroBatchTokens), int64(a.ContextTokens(shape.MaxPosition))) * 2
	if got := p.Of(Activations) - Count(whole, whole.Agent("help"), Model{Arch: shape, Trained: n}).Of(Activations); got != rows*6*int64(shape.Hidden)*2 {
		t.Errorf("%d bytes for rows sent to experts and back, of %d in a micro-batch", got, rows)
	}
}

// If no device of an agent has all weights, each has a third of them, two layers, and the elements outside the layers.
func TestCountOfShards(t *testing.T) {
	const n, third = smolLM2, smolLM2 / 3
	rest, one := longestLayer(smolLM2Shape.Layout())
	layer, layers := rest+one, rest+2*one
	for name, size := range map[string]int64{"boss": 4, "help": 2} {
		devices, master := "[cpu, cpu, cpu]", int64(0)
		if name == "help" {
			devices, master = "[cuda, cuda:1, cuda:2]", 4*third
		}
		cfg := team(t, "grpo.kl=k3", "grpo.kl_coef=0.1", "agents."+name+".devices="+devices,
			"agents."+name+`.engine={kind: vllm, url: ["http://h:1"], weights: {path: w}, checkpoint_activations: true}`, "agents."+name+".shard=full")
		a := cfg.Agent(name)
		for rank := range 3 {
			p := Count(cfg, a, Model{Arch: smolLM2Shape, Trained: n})
			if rank > 0 {
				p = CountFollower(cfg, a, rank, Model{Arch: smolLM2Shape, Trained: n})
			}
			held := size * (third + layers)
			if over := p.Of(Weights) - held; over < 0 || over > 1<<20 || p.Of(Reference) != p.Of(Weights) {
				t.Errorf("%s, rank %d: %d and %d bytes of weights, want %d plus rotary tables", name, rank, p.Of(Weights), p.Of(Reference), held)
			}
			if p.Of(Master) != master || p.Of(Gradients) != size*layer+4*third || p.Of(Moments) != 8*third || p.Of(KVCache) != 0 {
				t.Errorf("%s, rank %d: %v", name, rank, p)
			}
		}
	}
}

// Weights that stay quantised count with their quantised size, without a master.
func TestCountOfQuantised(t *testing.T) {
	const n, blocks, rotary = smolLM2, 77_000_000, 4 * 1024 * 64
	for _, agent := range []string{"boss", "help"} { // the first on the CPU, the second on a GPU
		cfg := team(t)
		a := *cfg.Agent(agent)
		a.Train, a.DType = false, "quantised"
		p := Count(cfg, &a, Model{Arch: smolLM2Shape, Quantised: blocks})
		if p.Of(Weights) != blocks+rotary || p.Of(Master) != 0 || p.Of(Gradients)+p.Of(Moments)+p.Of(Snapshot) != 0 || p.Of(KVCache) == 0 {
			t.Errorf("%s: %+v", agent, p)
		}
	}
}

// Of the agents that adapt one model, only the first counts the weights. MultiAdapterDecoder they count the cache of their shared
// engine, which is the sum of their requests. Layers with a window hold the windows of all conversations and one pass.
func TestCountOfSharedEngine(t *testing.T) {
	const n = smolLM2
	windowed := smolLM2Shape
	windowed.Windows = make([]int, windowed.Layers)
	for i := range 20 {
		windowed.Windows[i] = 64
	}
	cfg := team(t, "agents.help.device=cpu", "agents.help.engine.slots=4", "agents.help.engine.cache_tokens=3000", "agents.help.engine.conversations=50",
		"agents.boss.lora.r=2", "agents.help.lora.r=2")
	boss, help := cfg.Agent("boss"), cfg.Agent("help")
	const block = 2 * 32 * 192 * 4               // bytes of keys and values of a layer
	const blocks = 16*1024/32 + 94               // for a layer without a window: 3,000 tokens are 94 blocks
	const conversations = 16 + 50                // each has the blocks of a window plus two partial blocks
	passRows := int64(arch.PassRows(false)) / 32 // blocks
	windows := conversations*4 + passRows
	for shape, want := range map[*arch.Config]int64{&smolLM2Shape: 30 * blocks * block, &windowed: (10*blocks + 20*min(windows, blocks)) * block} {
		first, second := Count(cfg, boss, Model{Arch: *shape, Trained: 1000}), Count(cfg, help, Model{Arch: *shape, Trained: 1000}, boss)
		if first.Shares || first.Of(Weights) < 4*n || !second.Shares || second.Of(Weights)+second.Of(Master) != 0 {
			t.Errorf("%v; %v", first, second)
		}
		if got := first.Of(KVCache) + second.Of(KVCache); got != want {
			t.Errorf("the cache has %d bytes, want %d", got, want)
		}
	}
}

// On a GPU an agent needs more memory than its tensors. Agents that share a model count the part that does not depend on the model once.
func TestOverheadOfCUDA(t *testing.T) {
	cfg := team(t, "agents.boss.device=cuda", "agents.boss.lora.r=2", "agents.help.lora.r=2")
	boss, help := cfg.Agent("boss"), cfg.Agent("help")
	first, second := Count(cfg, boss, Model{Arch: smolLM2Shape, Trained: 1000}), Count(cfg, help, Model{Arch: smolLM2Shape, Trained: 1000}, boss)
	for _, n := range []Need{first, second} {
		tensors := on(n, "cuda:0") - n.Of(Overhead)
		want := tensors / 20
		if !n.Shares {
			want += 768 << 20
		}
		if n.Of(Overhead) != want {
			t.Errorf("%d bytes in addition to %d of tensors, want %d", n.Of(Overhead), tensors, want)
		}
	}
	if n := count(t, "boss"); n.Of(Overhead) != 0 {
		t.Errorf("%d bytes of overhead on a CPU", n.Of(Overhead))
	}
}

// on returns the number of bytes that an agent needs on a device.
func on(n Need, device string) int64 {
	return n.sum(func(p Part) bool { return p.Device == device })
}

// A snapshot is always in host memory, whether the agent is on a CPU or a GPU.
func TestSums(t *testing.T) {
	cfg := team(t)
	boss, help := count(t, "boss"), count(t, "help")
	if help.Device != "cuda:0" || on(help, "cpu") != 12*smolLM2 {
		t.Errorf("%+v", help)
	}
	sums := Sums([]Need{boss, help}, map[string]int64{"cpu": 1 << 40})
	if len(sums) != 2 || sums[0].Device != "cpu" || sums[0].Needed != on(boss, "cpu")+12*smolLM2 || sums[1].Free != -1 || sums[1].Needed != on(help, "cuda:0") {
		t.Errorf("%+v", sums)
	}
	if text := sums[0].String(); !strings.HasPrefix(text, "boss and a part of help on cpu: ") || !strings.HasSuffix(text, ", 1.0 TiB available") {
		t.Error(text)
	}
	single := Count(cfg, cfg.Agent("boss"), Model{Arch: smolLM2Shape, Trained: smolLM2})
	if got := Sums([]Need{single}, nil); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestFits(t *testing.T) {
	plan := func(agent, device string, kv, activations int64) Need {
		p := Need{Agent: agent, Device: device}
		p.add(Weights, 10)
		p.add(Gradients, 1)
		p.add(KVCache, kv)
		p.add(Activations, activations)
		p.lever("agents."+agent+".engine.slots", 12, KVCache)
		p.lever("agents."+agent+".engine.micro_batch_tokens", 4096, Activations)
		return p
	}
	planner, researcher := plan("planner", "cpu", 50, 20), plan("researcher", "cuda:1", 5, 30)
	for _, c := range []struct {
		name string
		free map[string]int64
		want []string // parts of the error; none if it fits
	}{
		{"enough", map[string]int64{"cpu": 81, "cuda:1": 46}, nil},
		{"unknown devices", nil, nil},
		{"the CPU is short", map[string]int64{"cpu": 80, "cuda:1": 46}, []string{"planner on cpu: 81 B", "80 B available", "lower agents.planner.engine.slots (12; KV cache 50 B) or agents.planner.limits.max_tokens"}},
		{"the GPU is short", map[string]int64{"cpu": 81, "cuda:1": 40}, []string{"researcher on cuda:1", "agents.researcher.engine.micro_batch_tokens (4096; activations 30 B)"}},
		{"both are short", map[string]int64{"cpu": 80, "cuda:1": 40}, []string{"planner on cpu", "researcher on cuda:1"}},
		{"far too small", map[string]int64{"cpu": 8}, []string{"that alone is not enough", "smaller model"}},
	} {
		err := Fits([]Need{planner, researcher}, c.free)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, word := range c.want {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want %q", c.name, err, word)
			}
		}
	}
	onGPU := researcher
	onGPU.Parts = append(onGPU.Parts[:4:4], Part{Snapshot, "cpu", 12})
	if err := Fits([]Need{planner, onGPU}, map[string]int64{"cpu": 92}); err == nil || !strings.Contains(err.Error(), "planner and a part of researcher on cpu: 93 B") {
		t.Errorf("a snapshot next to an agent: %v", err)
	}
	if err := Fits([]Need{onGPU}, map[string]int64{"cpu": 11}); err == nil || !strings.Contains(err.Error(), "train: false") {
		t.Errorf("only a snapshot: %v", err)
	}
	onGPU.Parts[4].Bytes = 100
	if err := Fits([]Need{planner, onGPU}, map[string]int64{"cpu": 132}); err == nil || !strings.Contains(err.Error(), "lower agents.planner.engine.slots (12;") {
		t.Errorf("a snapshot and a cache that exceeds the missing memory: %v", err)
	}
	if err := Fits([]Need{planner, onGPU}, map[string]int64{"cpu": 130}); err == nil || !strings.Contains(err.Error(), "100 B are copies from which checkpoints are written") {
		t.Errorf("everything except a snapshot fits: %v", err)
	}
	if err := Fits([]Need{planner, plan("researcher", "cpu", 5, 30)}, map[string]int64{"cpu": 100}); err == nil || !strings.Contains(err.Error(), "planner and researcher on cpu: 127 B") {
		t.Errorf("two agents on one device: %v", err)
	}
}

func TestTableFits80Columns(t *testing.T) {
	var out strings.Builder
	Write(&out, []Need{count(t, "boss", "grpo.kl=k3"), count(t, "help", "grpo.kl=k3")}, map[string]int64{"cpu": 1 << 35})
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	for _, want := range []string{"weights  master  grads  moments   ref", "  513M ", "copy", "total", "on cpu: ", "32.0 GiB available", "help on cuda:0: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestHostedNeedsNothing checks that a hosted agent uses no memory, and that the table shows that.
func TestHostedNeedsNothing(t *testing.T) {
	needs := []Need{{Agent: "far"}}
	var out strings.Builder
	Write(&out, needs, map[string]int64{"cpu": 0})
	if err := Fits(needs, map[string]int64{"cpu": 0}); err != nil || !strings.Contains(out.String(), "far") || !strings.Contains(needs[0].String(), "hosted elsewhere") {
		t.Errorf("%v, %s, %s", err, out.String(), needs[0])
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 30: "5.0 GiB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q, want %q", n, got, want)
		}
	}
}
