package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// loop is the main inner loop of a kernel.
type loop struct {
	loadBytes    float64 // of an average load from global memory; 0: no loop loads
	storeBytes   float64 // of an average store; 0: the loop does not store
	instructions float64 // for each 16 bytes that are loaded
}

// local returns the number of loads and stores of local memory: spilled registers, and arrays that are indexed by variables.
func (f function) local() (n int) {
	for _, i := range f.Code {
		if strings.HasPrefix(i.Opcode, "LDL") || strings.HasPrefix(i.Opcode, "STL") {
			n++
		}
	}
	return n
}

// target returns the index of the instruction that a direct branch jumps to, or -1 for any other instruction.
func (f function) target(at int) int {
	i := f.Code[at]
	if !strings.HasPrefix(i.Opcode, "BRA") {
		return -1
	}
	last := i.Operands[strings.LastIndex(i.Operands, ",")+1:]
	offset, err := strconv.ParseInt(strings.TrimSpace(last), 0, 64)
	if err != nil {
		return -1
	}
	const bytes = 16 // of an instruction
	return (int(offset) - f.Start) / bytes
}

// fallsThrough reports whether execution may continue with the next instruction.
func (f function) fallsThrough(at int) bool {
	i := f.Code[at]
	conditional := i.Predicate != "" || strings.Contains(i.Operands, ",")
	switch op, _, _ := strings.Cut(i.Opcode, "."); op {
	case "BRA":
		return conditional
	case "EXIT", "RET", "BRX", "JMX", "JMP":
		return i.Predicate != ""
	}
	return true
}

// access returns the size of a load or store of global memory, or 0 for any other instruction.
func (i instruction) access() (bytes int, load bool) {
	op, _, _ := strings.Cut(i.Opcode, ".")
	switch op {
	case "LDG", "LD", "LDGSTS":
		load = true
	case "STG", "ST":
	default:
		return 0, false
	}
	for _, s := range []struct {
		suffix string
		bytes  int
	}{{".128", 16}, {".64", 8}, {"16", 2}, {"8", 1}} {
		if strings.Contains(i.Opcode, s.suffix) {
			return s.bytes, load
		}
	}
	return 4, load
}

// path is one way through a loop.
type path struct {
	instructions                  int
	loads, loaded, stores, stored int // accesses to global memory, and their bytes
	wide, narrow                  int // bytes in accesses of 16 bytes; number of other accesses
}

func (p path) after(i instruction) path {
	p.instructions++
	bytes, load := i.access()
	switch {
	case bytes == 0:
		return p
	case load:
		p.loads, p.loaded = p.loads+1, p.loaded+bytes
	default:
		p.stores, p.stored = p.stores+1, p.stored+bytes
	}
	if bytes == widest {
		p.wide += bytes
	} else {
		p.narrow++
	}
	return p
}

const widest = 16 // bytes that one load or store moves at most

// A loop may have narrow accesses next to accesses of 16 bytes, for rows that are not aligned. aligned orders paths so that the path of an
// aligned row is the greatest: it moves the most bytes in wide accesses, with the fewest narrow ones. Of equal paths the longest counts.
func aligned(a, b path) int {
	return cmp.Or(cmp.Compare(a.wide, b.wide), cmp.Compare(b.narrow, a.narrow), cmp.Compare(a.instructions, b.instructions))
}

// unaligned orders paths of a loop without wide accesses: by the bytes that they move, then by length.
func unaligned(a, b path) int {
	return cmp.Or(cmp.Compare(a.loaded+a.stored, b.loaded+b.stored), cmp.Compare(a.instructions, b.instructions))
}

// innerLoop returns the innermost loop that loads the most bytes from global memory, in loads of 16 bytes if there are any.
func (f function) innerLoop() (best loop) {
	most := path{}
	inner := f.innermost()
	for _, head := range slices.Sorted(maps.Keys(inner)) {
		end := inner[head]
		p := f.longestPath(head, end, aligned)
		if p.wide == 0 {
			p = f.longestPath(head, end, unaligned)
		}
		if p.loads > 0 && cmp.Or(cmp.Compare(p.wide, most.wide), cmp.Compare(p.loaded, most.loaded), cmp.Compare(p.instructions, most.instructions)) > 0 {
			most = p
		}
	}
	if most.loads > 0 {
		best = loop{float64(most.loaded) / float64(most.loads), 0, widest * float64(most.instructions) / float64(most.loaded)}
	}
	if most.stores > 0 {
		best.storeBytes = float64(most.stored) / float64(most.stores)
	}
	return best
}

// innermost returns the loops that contain no other loop, by their first instruction, with their last branch back.
func (f function) innermost() map[int]int {
	all := map[int]int{}
	for at := range f.Code {
		if head := f.target(at); head >= 0 && head < at {
			all[head] = max(all[head], at)
		}
	}
	inner := map[int]int{}
	for head, end := range all {
		holds := false
		for other, last := range all {
			holds = holds || other != head && other >= head && last <= end
		}
		if !holds {
			inner[head] = end
		}
	}
	return inner
}

// longestPath returns the greatest path from a loop's head back to it that only moves forward between them.
func (f function) longestPath(head, end int, compare func(a, b path) int) (best path) {
	reached := map[int]path{head: {}}
	for at := head; at <= end; at++ {
		p, here := reached[at]
		if !here {
			continue
		}
		p = p.after(f.Code[at])
		step := func(to int) {
			if old, known := reached[to]; !known || compare(p, old) > 0 {
				reached[to] = p
			}
		}
		switch to := f.target(at); {
		case to == head:
			if best.instructions == 0 || compare(p, best) > 0 {
				best = p
			}
		case to > at && to <= end:
			step(to)
		}
		if f.fallsThrough(at) && at < end {
			step(at + 1)
		}
	}
	return best
}

// resident returns the number of blocks of a kernel that one multiprocessor holds at once, by registers,
// threads and static shared memory. It is 0 if the kernel does not promise a number of threads.
func resident(k kernel) (int, error) {
	memory, known := sharedMemory[k.arch]
	if !known {
		return 0, fmt.Errorf("there are no figures for the multiprocessor of %s: add them to bench/cubins", k.arch)
	}
	if k.threads == 0 {
		return 0, nil
	}
	const (
		warp, warps, most = 32, 64, 32   // threads; of a multiprocessor; blocks
		parts, registers  = 4, 65536 / 4 // a warp's registers are in one of four parts,
		step              = 8            // allocated in steps of 8 for each thread
		reserved          = 1024         // bytes of shared memory a block
	)
	own := (k.threads + warp - 1) / warp
	fit := parts * (registers / ((k.registers + step - 1) / step * step * warp)) / own
	return min(fit, warps/own, memory/(k.shared+reserved), most), nil
}

// sharedMemory holds the bytes of a multiprocessor of each architecture that the library is built for (CUDA C++ Programming Guide, compute
// capabilities).
var sharedMemory = map[string]int{"sm_80": 164 << 10, "sm_90a": 228 << 10, "sm_100": 228 << 10}
