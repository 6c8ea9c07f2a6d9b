package phases

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// network is a model: a file under models/, or a shape with random weights. In some, only adapters are trained.
type network struct {
	name   string
	file   string
	config arch.Config
	rank   int  // of adapters on all linear maps; 0: the weights are trained
	large  bool // the device makes the weights, because Go would take minutes
}

// folder returns the folder of weights that the device makes. The peers of all cases read it.
func (n network) folder(root string) string {
	return filepath.Join(root, "build", "bench-models", strings.Fields(n.name)[0])
}

var (
	smolLM2       = network{name: "SmolLM2-135M", file: "SmolLM2-135M-Instruct.Q4_1.gguf"}
	small         = network{name: "4 layers, width 256", config: llama(4, 256, 4, 2, 768, 4096)}
	tiny          = network{name: "2 layers, width 64", config: llama(2, 64, 4, 2, 160, 257)}
	tinyHybrid    = network{name: "3 layers with short convolutions, width 64", config: lfm2(3, 64, 4, 2, 160, 257)}
	tinyRecurrent = network{name: "4 layers with delta rules, width 64", config: qwen35(4, 64, 4, 2, 160, 257)}
	adapted       = smolLM2.adapted()
	experts       = network{name: "8 layers, width 512, 2 of 16 experts of 512", config: mixture(8, 512, 8, 4, 512, 16, 2, 8192)}
	hybrid        = network{name: "6 layers of LFM2-350M, 2 of which attend", config: lfm2(6, 1024, 16, 8, 4608, 65536)}
	recurrent     = network{name: "4 layers of Qwen3.5-0.8B, 1 of which attends, and 32,768 tokens", config: qwen35(4, 1024, 8, 2, 3584, 32768)}
)

// adapted returns the network with adapters.
func (n network) adapted() network {
	n.rank = 16
	n.name += fmt.Sprintf(" with LoRA (r %d, all-linear)", n.rank)
	return n
}

func llama(layers, width, heads, kvHeads, ffn, vocab int) arch.Config {
	return arch.Config{
		Family: arch.Llama, VocabSize: vocab, Hidden: width, Layers: layers, Heads: heads, KVHeads: kvHeads,
		HeadDim: width / heads, FFN: ffn, RMSEps: 1e-5, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 512, Tied: true, Tokens: arch.SpecialTokens{EOS: []int32{0}},
	}
}

func mixture(layers, width, heads, kvHeads, ffn, experts, perToken, vocab int) arch.Config {
	c := llama(layers, width, heads, kvHeads, ffn, vocab)
	c.Family, c.Mixture = arch.Qwen3MoE, &arch.Mixture{Experts: experts, PerToken: perToken, FFN: ffn, Normalise: true, Step: 1}
	return c
}

// lfm2 returns a hybrid. Two of three layers have a short convolution, and every third layer attends.
func lfm2(layers, width, heads, kvHeads, ffn, vocab int) arch.Config {
	c := llama(layers, width, heads, kvHeads, ffn, vocab)
	c.Family, c.Rope.Theta = arch.LFM2, 1e6
	return c.WithDefaults()
}

// qwen35 returns a hybrid with the heads of Qwen3.5-0.8B. Three of four layers have a gated delta rule, and every fourth layer attends.
func qwen35(layers, width, heads, kvHeads, ffn, vocab int) arch.Config {
	c := llama(layers, width, heads, kvHeads, ffn, vocab)
	c.Family, c.HeadDim, c.RMSEps, c.Rope.Theta, c.GatedDelta = arch.Qwen35, 256, 1e-6, 1e7,
		&arch.GatedDelta{KeyHeads: 16, ValueHeads: 16, KeyDim: 128, ValueDim: 128, Width: 4}
	for i := range layers {
		c.GatedDelta.Layers = append(c.GatedDelta.Layers, i%4 != 3)
	}
	return c.WithDefaults()
}
