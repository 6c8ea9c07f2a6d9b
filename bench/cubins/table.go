package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// kernel holds the figures of one kernel's machine code for one architecture.
type kernel struct {
	name, arch string // file:name<types>, sm_90a

	threads   int // of a block, at most; 0: not promised
	blocks    int // that a multiprocessor holds; 0: unknown
	registers int // of a thread
	shared    int // bytes, static
	stack     int // bytes of a thread
	local     int // loads and stores of local memory
	loop      loop
}

// table holds the contents of kernels/cuda/cubins.txt.
type table struct {
	compiler string
	kernels  []kernel
}

const preface = `# The machine code of the CUDA kernels in figures. "make cubins" compares a build with them, and "make cubins UPDATE=1" rewrites them.
#
# threads    of a block, as __launch_bounds__ promises; 0: not promised
# blocks     that a multiprocessor holds at once, by registers, threads and static shared memory          no fewer
# registers  a thread                                                                                     at most 8 more
# shared     bytes of static shared memory a block                                                        no more
# stack      bytes a thread                                                                               no more
# local      loads and stores of local memory: spilled registers and arrays indexed by variables          no more
# load       bytes of an average load from global memory in the main inner loop: 16 is the maximum        no fewer
# store      bytes of an average store to it; 0: the loop does not store                                  no fewer
# per16      instructions of that loop for 16 bytes that it loads                                         at most a tenth more
#
# compiled by `

func (t *table) text() []byte {
	slices.SortFunc(t.kernels, func(a, b kernel) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.arch, b.arch)) })
	var b strings.Builder
	b.WriteString(preface + t.compiler + "\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "kernel\tarch\tthreads\tblocks\tregisters\tshared\tstack\tlocal\tload\tstore\tper16")
	for _, k := range t.kernels {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.3g\t%.3g\t%.1f\n", k.name, k.arch, k.threads, k.blocks, k.registers, k.shared, k.stack, k.local,
			k.loop.loadBytes, k.loop.storeBytes, k.loop.instructions)
	}
	w.Flush()
	return []byte(b.String())
}

// parse reads the output of text.
func parse(text string) (*table, error) {
	t := &table{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if compiler, ok := strings.CutPrefix(line, "# compiled by "); ok {
			t.compiler = compiler
		}
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "kernel ") {
			continue
		}
		var k kernel
		if _, err := fmt.Sscan(line, &k.name, &k.arch, &k.threads, &k.blocks, &k.registers, &k.shared, &k.stack, &k.local, &k.loop.loadBytes,
			&k.loop.storeBytes, &k.loop.instructions); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		t.kernels = append(t.kernels, k)
	}
	if t.compiler == "" {
		return nil, fmt.Errorf("there is no line %q", "# compiled by")
	}
	return t, nil
}

// compare returns a line for each kernel that became worse, with the figures, and for each kernel that only one of the tables has.
func (t *table) compare(now *table) (worse []string) {
	rows := map[[2]string]kernel{}
	for _, k := range t.kernels {
		rows[[2]string{k.name, k.arch}] = k
	}
	for _, k := range now.kernels {
		key := [2]string{k.name, k.arch}
		was, known := rows[key]
		delete(rows, key)
		if !known {
			worse = append(worse, fmt.Sprintf("%s for %s is new: it has no row", k.name, k.arch))
			continue
		}
		if words := k.against(was); len(words) > 0 {
			worse = append(worse, fmt.Sprintf("%s for %s: %s", k.name, k.arch, strings.Join(words, "; ")))
		}
	}
	for key := range rows {
		worse = append(worse, fmt.Sprintf("%s for %s has a row, but the library has no such kernel", key[0], key[1]))
	}
	slices.Sort(worse)
	return worse
}

// against returns a sentence for each figure that is worse than the row allows.
func (k kernel) against(row kernel) (words []string) {
	say := func(worse bool, format string, args ...any) {
		if worse {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	say(k.threads != row.threads, "blocks of %d threads, the row has %d", k.threads, row.threads)
	say(k.blocks < row.blocks, "a multiprocessor holds %d blocks, the row has %d: fewer registers or less shared memory, or __launch_bounds__ with a "+
		"second number",
		k.blocks, row.blocks)
	say(k.registers > row.registers+8, "%d registers, the row has %d and allows 8 more", k.registers, row.registers)
	say(k.shared > row.shared, "%d bytes of shared memory, the row has %d", k.shared, row.shared)
	say(k.stack > row.stack, "%d bytes of stack, the row has %d: index arrays by constants in unrolled loops", k.stack, row.stack)
	say(k.local > row.local, "%d loads and stores of local memory, the row has %d: registers spill, or an array is indexed by a variable", k.local, row.local)
	const rounding = 0.06 // of the table's numbers
	say(k.loop.loadBytes < row.loop.loadBytes*(1-rounding), "the inner loop loads %.3g bytes at once, the row has %.3g: 16-byte packs of aligned addresses",
		k.loop.loadBytes, row.loop.loadBytes)
	say(k.loop.storeBytes < row.loop.storeBytes*(1-rounding), "the inner loop stores %.3g bytes at once, the row has %.3g: 16-byte packs at aligned addresses",
		k.loop.storeBytes, row.loop.storeBytes)
	say(k.loop.instructions > 1.1*row.loop.instructions+rounding, "%.1f instructions of the inner loop for 16 bytes, the row has %.1f and allows a tenth more",
		k.loop.instructions, row.loop.instructions)
	return words
}
