package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is host memory in bytes.
type Memory struct {
	Total     int64
	Available int64 // memory that this process can still get: free memory, and caches that the kernel can drop
}

// HostMemory returns the machine's memory, or the limit of a control group around this process if it is lower.
func HostMemory() (Memory, error) { return hostMemory("/") }

// hostMemory does the work of HostMemory, with the kernel's files below another root.
func hostMemory(root string) (Memory, error) {
	m, err := machineMemory(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return m, err
	}
	for _, g := range groups(root, "memory") {
		limit, free := limits(g)
		m.Total, m.Available = min(m.Total, limit), min(m.Available, free)
	}
	return m, nil
}

func machineMemory(path string) (Memory, error) {
	fields, err := numbers(path, ":")
	if err != nil {
		return Memory{}, err
	}
	total, available := fields["MemTotal"], fields["MemAvailable"]
	if total <= 0 {
		return Memory{}, fmt.Errorf("%s has no MemTotal", path)
	}
	return Memory{total << 10, available << 10}, nil // given in KiB
}

// limits returns the limit of a control group and the memory that is left; without a limit both are math.MaxInt64. The
// kernel can drop the inactive part of the group's file cache, so this part counts as left.
func limits(g group) (limit, free int64) {
	most, used, cache := "memory.max", "memory.current", "inactive_file"
	if g.v1 {
		most, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	}
	limit, err := strconv.ParseInt(fileWord(filepath.Join(g.dir, most), 0), 10, 64)
	if err != nil { // "max", or there is no such group
		return math.MaxInt64, math.MaxInt64
	}
	n, err := strconv.ParseInt(fileWord(filepath.Join(g.dir, used), 0), 10, 64)
	if err != nil {
		return math.MaxInt64, math.MaxInt64
	}
	stat, err := numbers(filepath.Join(g.dir, "memory.stat"), " ")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return math.MaxInt64, math.MaxInt64
	}
	return limit, max(limit-n+stat[cache], 0)
}

// numbers reads lines of a name, a separator and a number, and skips other lines.
func numbers(path, separator string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, separator)
		if words := strings.Fields(rest); len(words) > 0 {
			if n, err := strconv.ParseInt(words[0], 10, 64); err == nil {
				out[name] = n
			}
		}
	}
	return out, nil
}
