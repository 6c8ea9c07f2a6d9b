package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// Marks around a part of a document that this command writes.
const (
	writtenBegin = "<!-- written by go run ./bench/document -->\n"
	writtenEnd   = "<!-- end of what is written -->\n"
)

// withPart returns a document of the repository with the part between the marks replaced.
func withPart(root, name, part string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return "", err
	}
	before, rest, begins := strings.Cut(string(data), writtenBegin)
	_, after, ends := strings.Cut(rest, writtenEnd)
	if !begins || !ends {
		return "", fmt.Errorf("%s lacks the marks around the part that bench/document writes", name)
	}
	return before + writtenBegin + part + writtenEnd + after, nil
}

// choice is a row of README's table: a case and a peer.
type choice struct{ work, suite, name, shape, peer, title string }

// The cases of README's table, by the results' slug of the machine. They are chosen by what a user would use the peer for, not by who wins.
var choices = map[string][]choice{
	"intel-r-xeon-r-processor-2c-avx512": {
		{"prompts and sampling, 16 sequences", "rollout", "smollm2", "", "hf-generate", "transformers"},
		{"prompts and sampling, 16 sequences", "rollout", "smollm2", "", "vllm", "vLLM"},
		{"prompts and sampling, 2 prompts × 8 samples", "rollout", "smollm2-shared", "", "vllm", "vLLM"},
		{"sampling, 1 sequence, F32", "decode", "F32-1x128", "", "llama.cpp", "llama.cpp"},
		{"sampling, 1 sequence, Q8_0", "decode", "Q8_0-1x128", "", "llama.cpp", "llama.cpp"},
		{"sampling, 16 sequences, F32", "decode", "F32-16x128", "", "llama.cpp", "llama.cpp"},
		{"sampling, 16 sequences, Q8_0", "decode", "Q8_0-16x128", "", "llama.cpp", "llama.cpp"},
		{"reading 8 prompts of 512 tokens, BF16", "decode", "BF16-prompts-8x512", "", "llama.cpp", "llama.cpp"},
		{"update, 2 prompts × 8 samples", "learner", "smollm2", "", "hf-forward-backward", "transformers"},
		{"update, 16 prompts × 1 sample", "learner", "smollm2-dense", "", "hf-forward-backward", "transformers"},
		{"update of LoRA adapters, 2 prompts × 8 samples", "learner", "smollm2-lora", "", "peft", "PEFT"},
		{"update, 6 layers of LFM2-350M, 16 prompts × 1 sample", "learner", "hybrid", "", "hf-forward-backward", "transformers"},
		{"update, 4 layers of Qwen3.5-0.8B, 16 prompts × 1 sample", "learner", "recurrent", "", "hf-forward-backward", "transformers"},
		{"step of GRPO, 2 prompts × 8 samples", "step", "smollm2", "", "trl", "TRL"},
		{"step of GRPO with LoRA, 2 prompts × 8 samples", "step", "smollm2-lora", "", "trl-peft", "TRL with PEFT"},
		{"step of a team of two models", "step", "team", "", "comlrl", "CoMLRL"},
		{"policy loss from hidden states, 2,048 tokens", "kernels", "linear_policy_loss", "2048 x 576 x 49152", "torch-eager", "PyTorch"},
		{"the same, in chunks", "kernels", "linear_policy_loss", "2048 x 576 x 49152", "torch-chunked", "PyTorch"},
	},
	"amd-epyc-family-26-2c-avx512": {
		{"prompts and sampling, 16 sequences", "rollout", "smollm2", "", "vllm", "vLLM"},
		{"prompts and sampling, 2 prompts × 8 samples", "rollout", "smollm2-shared", "", "vllm", "vLLM"},
		{"sampling, 1 sequence after 1,024 tokens, Q8_0", "decode", "Q8_0-1x1024", "", "llama.cpp", "llama.cpp"},
		{"sampling, 16 sequences, F32", "decode", "F32-16x128", "", "llama.cpp", "llama.cpp"},
		{"sampling, 16 sequences, Q8_0", "decode", "Q8_0-16x128", "", "llama.cpp", "llama.cpp"},
		{"update, 16 prompts × 1 sample", "learner", "smollm2-dense", "", "hf-forward-backward", "transformers"},
		{"update of LoRA adapters, 2 prompts × 8 samples", "learner", "smollm2-lora", "", "peft", "PEFT"},
		{"step of a team of two models", "step", "team", "", "comlrl", "CoMLRL"},
	},
	"nvidia-h100-80gb-hbm3": {
		{"sampling, Qwen3-1.7B, 64 sequences, bf16", "rollout", "qwen3-1.7b", "", "hf-generate", "transformers"},
		{"update, Qwen3-1.7B, 16 prompts × 1 sample, bf16", "learner", "qwen3-1.7b", "", "hf-liger", "transformers with Liger"},
		{"decode attention, 64 rows, 1,024 keys, 14/2 heads of 64", "kernels", "decode_attention, bfloat16", "64 rows, context 1024, 14/2 heads of 64",
			"torch-eager", "PyTorch"},
		{"advantages of 8,001,640 rewards in 1,000,000 groups", "kernels", "group_advantage", "8001640 rewards in 1000000 groups", "torch-compile",
			"PyTorch, compiled"},
	},
}

// summary returns README's tables of the peers' times over ours.
func summary(machines []*machine) (string, error) {
	b := &strings.Builder{}
	var problems []error
	for _, m := range machines {
		var rows []string
		for _, c := range choices[m.slug] {
			ratio, err := m.ratio(c)
			problems = append(problems, err)
			rows = append(rows, fmt.Sprintf("| %s | %s | %.2f |", c.work, c.title, ratio))
		}
		table(b, "\n", "| "+m.title()+" | peer | speed-up over peer |", rows)
	}
	return strings.TrimPrefix(b.String(), "\n"), errors.Join(problems...)
}

// title names the machine in the head of a table.
func (m *machine) title() string {
	is := m.is()
	if is.GPU != "" {
		return is.GPU
	}
	return fmt.Sprintf("%s, %d cores, %s; SmolLM2-135M unless named", is.CPU, is.Cores, is.ISA)
}

// ratio returns a peer's time over ours.
func (m *machine) ratio(c choice) (float64, error) {
	for _, r := range m.results {
		i := slices.IndexFunc(r.Rows, func(row measure.Row) bool {
			return r.Suite == c.suite && row.Name == c.name && (c.shape == "" || row.Shape == c.shape) && row.Cache == measure.Cold
		})
		if i >= 0 && r.Rows[i].Ratio[c.peer] > 0 {
			return r.Rows[i].Ratio[c.peer], nil
		}
	}
	return 0, fmt.Errorf("%s: %s %s %s has no time of %s", m.slug, c.suite, c.name, c.shape, c.peer)
}
