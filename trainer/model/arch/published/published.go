// Package published holds the shapes of published models, from their config.json, for tests and for the tables of the
// documentation.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package published

import "github.com/mgrpo/mgrpo/trainer/model/arch"

// Model is a published model.
type Model struct {
	Name string
	Arch arch.Config
}

// Qwen3 lists models of one family, in the order of their sizes. The last one is a mixture of experts.
var Qwen3 = []Model{
	{"Qwen3-1.7B", qwen3(28, 2048, 16, 8, 6144, true)},
	{"Qwen3-4B", qwen3(36, 2560, 32, 8, 9728, true)},
	{"Qwen3-8B", qwen3(36, 4096, 32, 8, 12288, false)},
	{"Qwen3-14B", qwen3(40, 5120, 40, 8, 17408, false)},
	{"Qwen3-30B-A3B", experts(qwen3(48, 2048, 32, 4, 6144, false), 128, 8, 768)},
}

func qwen3(layers, width, heads, kvHeads, ffn int, tied bool) arch.Config {
	return arch.Config{Family: arch.Qwen3, VocabSize: 151936, Hidden: width, Layers: layers, Heads: heads, KVHeads: kvHeads, HeadDim: 128, FFN: ffn,
		RMSEps: 1e-6, Rope: arch.Rope{Theta: 1e6}, MaxPosition: 40960, Tied: tied}
}

func experts(c arch.Config, experts, perToken, ffn int) arch.Config {
	c.Family, c.Mixture = arch.Qwen3MoE, &arch.Mixture{Experts: experts, PerToken: perToken, FFN: ffn, Normalise: true, Step: 1}
	return c
}
