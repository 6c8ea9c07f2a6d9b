package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bench/kernels"
	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/phases"
)

const intro = `# Benchmarks

Generated from the files in [bench/results](../bench/results) by ` + "`go run ./bench/document`" + `; do not edit either by hand. To measure
your own machine, while no other program runs on it:

<!-- ci: run: bin/mgrpo bench kernels --quick && bin/mgrpo bench store --quick -->
` + "```sh" + `
make build bench-peers
bin/mgrpo bench kernels
bin/mgrpo bench store
go run ./bench/document
` + "```" + `

How to read the tables:

- **Ours and the peers run in turns** in one measurement, on the same inputs, with the same number of threads and the same type
  of numbers. There are two exceptions. On a GPU a phase's peer begins after ours has ended, because the memory does not hold
  both (since 28 November 2026). On a CPU a step that samples from bf16 weights is compared with TRL in float32.
- **Times** are medians of 20 samples, with the 20th and 80th percentile in brackets. If a sample takes more than a second, there are
  5 samples, and 1 if it takes more than two minutes.
- **TRL** is its GRPOTrainer. TRL's experimental AsyncGRPOTrainer (1.16) packs common prefixes, but needs FlashAttention 3, so it
  cannot run on a CPU.
- **vLLM** samples with its own build for CPUs. The load before a row also counts programs of idle priority. With 16 different
  prompts, a speed of 1.5 times vLLM's would need 93 % of the rates at which the CPU without AMX below reads memory and multiplies
  large matrices.
- **The floor** is the least possible time on this machine. It is the larger of two times: the time to move the bytes at the rate
  of a copy (of a read, if almost nothing is written), and the time of the operations at the rate of a large matrix product. The
  product is LibTorch's, and since 29 November 2026 ours on AMD since Zen 5, where it is faster. 100 % is as fast as this ceiling.
  The rates are measured in the same run: before the suite (its table shows them), and before each row (the JSON has them, with the
  formulas of bytes and operations). On a GPU, which no other program uses, they are measured once a suite. Some older rows on CPUs
  also use the suite's rates.
- A **hot** call finds its inputs in the cache after the previous run. Its floor is computed from a copy within the last-level cache.
- A **cold** call begins with other data in the caches. It must also wake the threads, which takes some tens of microseconds for
  every provider. That is most of the time of small cases. In rows marked † a cold call may have found a part of its inputs in
  the last-level cache, because the eviction of 96 MiB was smaller than that cache. Such a row can be above 100 % of its floor.
- **speed-up over peer** is the peer's median divided by ours, so we are faster above 1. *bf16 emulated* marks a peer that computes in bf16 on
  a machine whose bf16 products are slower than float32. Such a row counts neither as a win nor for a target. In it, ours
  multiplies float32, even in a row of bf16.
- **Error** is the largest difference from float64 of any output, divided by that output's largest value, in the same run. For
  phases it is the error of log-probs. The suites learner and step compare the log-probs of their forward pass. In the suite decode, and for two
  agents, log-probs are compared with our own pass in float32.
- **Memory** is the peak growth of the process during a cold run: a provider's memory in addition to its inputs. For two agents it
  is the computed size of the weights. For a step with adapters, and in the suite decode, it is the memory of our tensors and of
  the peers' processes. Gradients that PyTorch allocates count. Ours do not, because they are added to a buffer that training has
  anyway.
`

// text returns the contents of docs/benchmarks.md.
func text(machines []*machine) string {
	var b strings.Builder
	b.WriteString(intro)
	for _, m := range machines {
		m.write(&b)
	}
	var rows []string
	for _, r := range unmeasured(machines) {
		for _, t := range r.Targets {
			rows = append(rows, fmt.Sprintf("| %s: %s, %s | %s |", r.Suite, r.Name, r.Shape, t.Text))
		}
	}
	table(&b, "\n## Not yet measured on a GPU\n\nOn a machine with one, `build/gpu.call/start first` measures the phases and `start rest` the kernels "+
		"(`make gpu-call`).\n\n",
		"| what | target |", rows)
	return b.String()
}

// table writes a table after a text, or nothing if the table has no rows.
func table(b *strings.Builder, before, head string, rows []string) {
	if len(rows) > 0 {
		b.WriteString(before + head + "\n" + strings.Repeat("|---", strings.Count(head, "|")-1) + "|\n" + strings.Join(rows, "\n") + "\n")
	}
}

// unmeasured returns the rows of a GPU that none of the machines has.
func unmeasured(machines []*machine) []measure.Row {
	all := slices.Concat(kernels.OnGPU(), phases.OnGPU("rollout"), phases.OnGPU("learner"), phases.OnGPU("step"))
	return slices.DeleteFunc(all, func(row measure.Row) bool {
		return slices.ContainsFunc(machines, func(m *machine) bool { return m.is().GPU != "" && slices.ContainsFunc(m.rows(), row.SameCase) })
	})
}

func (m *machine) write(b *strings.Builder) {
	if first := m.is(); first.GPU == "" {
		fmt.Fprintf(b, "\n## %s, %d cores\n\n", first.CPU, first.Cores)
	} else {
		fmt.Fprintf(b, "\n## %s\n\nThe driver supports CUDA %s. The processor is %s with %d cores. Caches are cold. Kernels are timed between two "+
			"events on the GPU's stream. Phases wait for the GPU themselves, so they are timed by the clock. Memory counts the allocations of LibTorch.\n\n",
			first.GPU, first.Driver, first.CPU, first.Cores)
	}
	var suites, again []string
	for _, r := range m.results {
		c, d := r.Ceilings, r.Machine
		suites = append(suites, fmt.Sprintf("| %s | %s | %s | %d | %s | %s | %.2f | %.1f, %.1f | %.0f, %.0f | %.0f, %.0f |", r.Suite, r.Date, d.Commit,
			d.Threads, d.ISA, d.LibTorch,
			r.LoadBefore, c.Copy.Median, c.Read.Median, c.CachedCopy.Median, c.CachedRead.Median, c.GEMM.Median, c.GEMMBF16.Median))
	}
	for _, r := range m.rows() {
		if r.Again != nil {
			again = append(again, fmt.Sprintf("| %s, %s, %s | %s | %s | %.2f |", r.Name, r.Shape, r.Cache, r.Again.Date, r.Again.Commit, r.Again.LoadBefore))
		}
	}
	table(b, "",
		"| suite | date (UTC) | commit | threads | kernels' ISA | LibTorch | load before | copy, read GB/s | in cache GB/s | gemm GFLOP/s, in bf16 |", suites)
	table(b, "\nMeasured again, later than the rest of their suite:\n\n", "| what | date (UTC) | commit | load before |", again)
	var n notes
	table(b, "\n### Targets\n\n", "| what | target | measured | |", append(m.targets(&n), m.storeTargets(&n)...))
	n.write(b)
	m.writeStandings(b)
	for _, f := range m.figures() {
		fmt.Fprintf(b, "\n![%s](%s)\n", f.title, f.file)
	}
	for _, r := range m.results {
		writeRows(b, r)
	}
	if m.hot != nil {
		m.hot.write(b)
	}
	m.writeStore(b)
}

func (m *machine) rows() (all []measure.Row) {
	for _, r := range m.results {
		all = append(all, r.Rows...)
	}
	return all
}

// notes holds the remarks about the rows of a table, each once.
type notes []string

// mark returns a verdict with the number of its remark, if there is one.
func (n *notes) mark(verdict, remark string) string {
	if remark == "" {
		return verdict
	}
	if !slices.Contains(*n, remark) {
		*n = append(*n, remark)
	}
	return fmt.Sprintf("%s (%d)", verdict, slices.Index(*n, remark)+1)
}

// write writes the remarks as a numbered list below the table.
func (n notes) write(b *strings.Builder) {
	for i, remark := range n {
		if i == 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(b, "%d. %s\n", i+1, remark)
	}
}

// targets returns the rows of the table of targets: the measured values, and whether they met the targets.
func (m *machine) targets(n *notes) (rows []string) {
	for _, r := range m.rows() {
		for _, t := range r.Targets {
			value, verdict := "-", "not measured"
			if t.Value != nil {
				value, verdict = fmt.Sprintf("%.3g", *t.Value), "met"
				switch {
				case !t.Met:
					row := r.Suite + " " + r.Name
					if m.is().GPU != "" {
						row = "gpu " + row
					}
					verdict = n.mark("missed", reasons[row][t.Kind])
				case t.Peer != "" && m.emulated(r):
					verdict = "not counted: the peer's bf16 is emulated"
				case m.is().GPU != "":
					verdict = n.mark("met", gpuRemarks[r.Suite+" "+r.Name])
				}
			}
			rows = append(rows, fmt.Sprintf("| %s, %s | %s | %s | %s |", r.Name, r.Shape, t.Text, value, verdict))
		}
	}
	return rows
}

// emulated reports whether the peers of a row emulate their type of numbers.
func (m *machine) emulated(row measure.Row) bool {
	return slices.ContainsFunc(m.results, func(r *measure.Results) bool { return r.Suite == row.Suite && row.Emulated(r.Ceilings) })
}

// writeStandings writes the number of comparisons in which we are faster, and lists the other ones.
func (m *machine) writeStandings(b *strings.Builder) {
	type loss struct {
		ratio float64
		row   string
	}
	var losses []loss
	wins, emulated := 0, 0
	for _, r := range m.rows() {
		for peer, ratio := range r.Ratio {
			switch {
			case ratio < 1:
				losses = append(losses, loss{ratio, fmt.Sprintf("| %s, %s | %s | %s | %.2f |", r.Name, r.Shape, r.Cache, peer, ratio)})
			case m.emulated(r):
				emulated++
			default:
				wins++
			}
		}
	}
	slices.SortFunc(losses, func(x, y loss) int { return cmp.Or(cmp.Compare(x.ratio, y.ratio), strings.Compare(x.row, y.row)) })
	fmt.Fprintf(b, "\n### Wins and losses\n\nFaster in %d of %d comparisons.", wins, wins+len(losses))
	if emulated > 0 {
		fmt.Fprintf(b, " %d more, with peers whose bf16 is emulated, are not counted.", emulated)
	}
	var rows []string
	for _, l := range losses {
		rows = append(rows, l.row)
	}
	if len(rows) == 0 {
		b.WriteString("\n")
	}
	table(b, " Slower in these:\n\n", "| case | cache | against | speed-up over peer |", rows)
}

// writeRows writes the table of a suite.
func writeRows(b *strings.Builder, r *measure.Results) {
	peers := peersOf(r)
	fmt.Fprintf(b, "\n### %s\n\n", strings.ToUpper(r.Suite[:1])+r.Suite[1:])
	if r.Suite == "kernels" {
		all, measured := casesOf(r), 0
		for _, c := range all {
			if slices.ContainsFunc(r.Rows, c.SameCase) {
				measured++
			}
		}
		if measured < len(all) {
			fmt.Fprintf(b, "%d of the suite's %d cases are measured on this machine.\n\n", measured, len(all))
		}
	}
	head := "| case | cache | ours | of floor | GB/s | GFLOP/s | error | memory |"
	for _, p := range peers {
		head += fmt.Sprintf(" × %s | its error | its memory |", p)
	}
	var rows, failed, fast []string
	for _, row := range r.Rows {
		if beatsFloor(row, r.Machine) {
			fast = append(fast, fmt.Sprintf("- %s: %s", row.Name, fasterThanFloor[row.Name]))
		}
		ours := row.Of(measure.Ours)
		if ours == nil {
			continue
		}
		cells := fmt.Sprintf("| %s, %s | %s | %s (%s, %s) | %.0f %%%s of %s | %.1f | %.1f | %.0e | %s |", row.Name, row.Shape, row.Cache,
			measure.Seconds(ours.Median),
			measure.Seconds(ours.P20), measure.Seconds(ours.P80), ours.PercentOfFloor, mark(row, r.Machine), row.FloorOf, ours.GBps, ours.GFLOPs,
			ours.MaxError, measure.Bytes(ours.PeakExtraBytes))
		for _, name := range peers {
			p := row.Of(name)
			switch {
			case p == nil:
				cells += " | | |"
			case p.Status != "ok":
				cells += " failed | | |"
				failed = append(failed, fmt.Sprintf("- %s, %s, %s: %s", row.Name, row.Shape, name, p.Status))
			default:
				how := ""
				if row.Emulated(r.Ceilings) {
					how = ", bf16 emulated"
				}
				cells += fmt.Sprintf(" %.2f%s | %.0e | %s |", row.Ratio[name], how, p.MaxError, measure.Bytes(p.PeakExtraBytes))
			}
		}
		rows = append(rows, cells)
	}
	table(b, "", head, rows)
	if len(fast) > 0 {
		b.WriteString("\nWhy these are faster than their floor:\n\n" + strings.Join(slices.Compact(fast), "\n") + "\n")
	}
	if len(failed) > 0 {
		b.WriteString("\nPeers that did not run:\n\n" + strings.Join(slices.Compact(failed), "\n") + "\n")
	}
}

// beatsFloor reports whether a row is faster than its floor by more than medians on a shared machine differ, and was not warm.
func beatsFloor(row measure.Row, m measure.Machine) bool {
	const noise = 115 // percent
	ours := row.Of(measure.Ours)
	return ours != nil && ours.PercentOfFloor > noise && mark(row, m) == ""
}

// mark returns the sign of a row whose cold calls may have been warm.
func mark(row measure.Row, m measure.Machine) string {
	if row.Cache == measure.Cold && m.Hot() {
		return " †"
	}
	return ""
}

// peersOf returns the names of a suite's peers in the order of their appearance.
func peersOf(r *measure.Results) (names []string) {
	for _, row := range r.Rows {
		for _, p := range row.Providers {
			if p.Name != measure.Ours && !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	return names
}
