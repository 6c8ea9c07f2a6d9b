package roofline

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bench/measure"
)

// Processor returns the CPU on which `mgrpo bench kernels` measured these results. now holds its ceilings, which may have been measured
// at another time.
func Processor(kernels *measure.Results, now measure.Ceilings, isa string) (d Device, err error) {
	if kernels.Suite != "kernels" || kernels.Machine.GPU != "" {
		return d, fmt.Errorf("these are results of %s on %s%s: run mgrpo bench kernels on a CPU", kernels.Suite, kernels.Machine.CPU, kernels.Machine.GPU)
	}
	m := kernelTimes{results: kernels}
	const giga = 1e9
	d = Device{
		Name: kernels.Machine.CPU, Read: giga * now.Read.Median, Copy: giga * now.Copy.Median, FP32: giga * now.GEMM.Median, BF16: giga * now.GEMMBF16.Median,
		Attention: m.flops("attention_packed fwd+bwd", ""), Cached: m.bytes("decode_attention", ""),
		Launch: m.seconds("group_advantage", "4 rewards in 1 groups"), Link: giga * now.Copy.Median,
		Few32: m.flops("linear", "16 x 576 x 49152"), Few16: m.flops("linear, bf16 weights", "16 x 576 x 49152"),
	}
	// Weights in bf16 are widened and multiplied in fp32, or in the tiles of AMX, where each row is two rows of bf16. If the
	// results have a row with rounded input, run.matmul: bf16 rounds the rows to bf16, unless products of bf16 are slower.
	d.Prompts16 = d.FP32
	if isa == "amx" {
		d.Prompts16, d.Few16 = d.BF16/2, d.BF16/2
	}
	const rounded, few = "linear, " + measure.BF16Factors, "16 x 576 x 49152"
	if d.BF16 > d.FP32 && m.has(rounded, few) {
		d.RoundedPrompts16, d.RoundedFew16 = d.BF16, m.flops(rounded, few)
	}
	// Older results have no rows of recurrences. The rates of products and copies then give a lower bound of their time.
	d.Recurrence, d.TrainedRecurrence, d.States = d.FP32, d.FP32, d.Copy
	if rule := "gated_delta_rule"; m.has(rule, "") {
		d.Recurrence, d.TrainedRecurrence, d.States = m.flops(rule, ""), m.flops(rule+" fwd+bwd", ""), m.bytes("gated_delta_step", "")
	}
	d.BF16 = max(d.BF16, d.FP32) // a CPU without fast products of bf16 does not round factors
	return d, m.err
}

// kernelTimes looks up the time of a kernel's cold call.
type kernelTimes struct {
	results *measure.Results
	err     error
}

// has reports whether there is a row with this name, and a shape that begins so.
func (m *kernelTimes) has(name, shape string) bool {
	return slices.ContainsFunc(m.results.Rows, func(r measure.Row) bool { return r.Name == name && strings.HasPrefix(r.Shape, shape) })
}

func (m *kernelTimes) row(name, shape string) (row measure.Row, seconds float64) {
	for _, r := range m.results.Rows {
		if r.Name != name || !strings.HasPrefix(r.Shape, shape) || r.Cache != measure.Cold {
			continue
		}
		if p := r.Of(measure.Ours); p != nil && p.Status == "ok" {
			return r, p.Median
		}
	}
	m.err = fmt.Errorf("the results have no row %q %q: measure them again with mgrpo bench kernels", name, shape)
	return row, math.NaN()
}

func (m *kernelTimes) seconds(name, shape string) float64 {
	_, seconds := m.row(name, shape)
	return seconds
}

func (m *kernelTimes) flops(name, shape string) float64 {
	row, seconds := m.row(name, shape)
	return row.FLOPs.Value / seconds
}

func (m *kernelTimes) bytes(name, shape string) float64 {
	row, seconds := m.row(name, shape)
	return row.Bytes.Value / seconds
}
