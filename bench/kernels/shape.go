package kernels

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kernel is a kernel with sizes that a user may choose.
type kernel struct {
	name     string
	sizes    []string // names of a shape's numbers
	backward bool     // there is also a case with forward and backward pass
	make     func(n []int64, backward int64) workload
}

// chosen holds the kernels in the order of List.
var chosen = []kernel{
	{"group_advantage", []string{"groups"}, false, func(n []int64, _ int64) workload { return advantages(n[0]) }},
	{"token_logprob", []string{"rows", "vocabulary"}, true, func(n []int64, b int64) workload { return logProbs(n[0], n[1], b) }},
	{"policy_loss_from_logits", []string{"rows", "vocabulary"}, false, func(n []int64, _ int64) workload { return lossFromLogits(n[0], n[1]) }},
	{"linear_policy_loss", []string{"rows", "width", "vocabulary"}, false, func(n []int64, _ int64) workload { return linearLoss(n[0], n[1], n[2]) }},
	{"adamw", []string{"parameters"}, false, func(n []int64, _ int64) workload { return optimizer(n[0]) }},
	{"rms_norm", []string{"rows", "width"}, true, func(n []int64, b int64) workload { return norms(n[0], n[1], b) }},
	{"add_rms_norm", []string{"rows", "width"}, true, func(n []int64, b int64) workload { return addedNorms(n[0], n[1], b) }},
	{"swiglu", []string{"rows", "width"}, true, func(n []int64, b int64) workload { return gates(n[0], n[1], b) }},
	{"heads", []string{"rows", "heads", "kv_heads", "head_dim"}, true, func(n []int64, b int64) workload { return splits(n[0], n[1], n[2], n[3], b) }},
	{"attention_packed", []string{"sequences", "shortest", "longest", "heads", "kv_heads", "head_dim"}, true,
		func(n []int64, b int64) workload { return attentions(n[0], n[1], n[2], n[3], n[4], n[5], b) }},
	{"decode_attention", []string{"sequences", "context", "heads", "kv_heads", "head_dim"}, false,
		func(n []int64, _ int64) workload { return decodes(n[0], n[1], n[2], n[3], n[4]) }},
	{"gated_delta_rule", []string{"sequences", "length", "key_heads", "value_heads", "head_dim"}, true,
		func(n []int64, b int64) workload { return deltaRules(n[0], n[1], n[2], n[3], n[4], b) }},
	{"gated_delta_step", []string{"sequences", "key_heads", "value_heads", "head_dim"}, false,
		func(n []int64, _ int64) workload { return deltaSteps(n[0], n[1], n[2], n[3]) }},
	{"linear", []string{"rows", "in", "out"}, false, func(n []int64, _ int64) workload { return linears(n[0], n[1], n[2], "") }},
	{"sample", []string{"rows", "vocabulary"}, false, func(n []int64, _ int64) workload { return samples(n[0], n[1]) }},
}

// List returns a line for each kernel whose name contains part, with the names of its shape's numbers.
func List(part string) string {
	var b strings.Builder
	for _, k := range chosen {
		if !strings.Contains(k.name, part) {
			continue
		}
		fmt.Fprintf(&b, "%-24s %s\n", k.name, strings.Join(k.sizes, " x "))
	}
	return b.String()
}

// maxSize bounds each number of a shape.
const maxSize = 1 << 32

// Shape is a kernel at sizes that the user chose. The zero Shape means the suite's own sizes.
type Shape struct{ workloads []workload }

// ParseShape returns a kernel at sizes such as 4096x151936, whose numbers List names, in fp32 or bf16.
func ParseShape(name, sizes, dtype string) (Shape, error) {
	i := slices.IndexFunc(chosen, func(k kernel) bool { return k.name == name })
	if i < 0 {
		return Shape{}, fmt.Errorf("--only %q names no kernel; --list has their names", name)
	}
	k := chosen[i]
	words := strings.Split(sizes, "x")
	if len(words) != len(k.sizes) {
		return Shape{}, fmt.Errorf("%q has %d numbers; a shape of %s is %s", sizes, len(words), name, strings.Join(k.sizes, " x "))
	}
	var n []int64
	for j, word := range words {
		v, err := strconv.ParseInt(word, 10, 64)
		if err != nil || v < 1 || v > maxSize {
			return Shape{}, fmt.Errorf("%q: %s is %q and must be a whole number from 1 to %d", sizes, k.sizes[j], word, int64(maxSize))
		}
		n = append(n, v)
	}
	all := []workload{k.make(n, 0)}
	if k.backward {
		all = append(all, k.make(n, 1))
	}
	switch {
	case dtype == "fp32":
	case dtype != "bf16":
		return Shape{}, fmt.Errorf("--dtype %s: fp32 or bf16", dtype)
	case name == "group_advantage" || name == "adamw" || name == "gated_delta_step":
		return Shape{}, fmt.Errorf("%s has no variant in bf16", name)
	case name == "linear":
		all[0] = linears(n[0], n[1], n[2], halfWeights)
	default:
		for j := range all {
			all[j] = all[j].inHalf()
		}
	}
	return Shape{all}, nil
}
