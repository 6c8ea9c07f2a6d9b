package memory

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

// Machine is host memory in bytes.
type Machine struct {
	Total     int64
	Available int64 // memory that this process can still get: free memory, and caches that the kernel can drop
}

// Host reads the machine's memory from the kernel's files below root ("/"; tests use another folder). Where the limit
// of this process's control group is lower, it counts instead.
func Host(root string) (Machine, error) {
	m, err := machineMemory(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return m, err
	}
	limit, free := groupMemory(filepath.Join(root, "sys/fs/cgroup"))
	return Machine{min(m.Total, limit), min(m.Available, free)}, nil
}

func machineMemory(path string) (Machine, error) {
	fields, err := numbers(path, ":")
	if err != nil {
		return Machine{}, err
	}
	total, available := fields["MemTotal"], fields["MemAvailable"]
	if total <= 0 {
		return Machine{}, fmt.Errorf("%s has no MemTotal", path)
	}
	return Machine{total << 10, available << 10}, nil // given in KiB
}

// groupMemory is the limit of the control group and the memory that is left of it; without a limit both are
// math.MaxInt64. The kernel can drop the inactive part of the group's file cache, so this part counts as left.
func groupMemory(dir string) (limit, free int64) {
	for _, v := range []struct{ limit, used, stat, cache string }{
		{"memory.max", "memory.current", "memory.stat", "inactive_file"},                                              // version 2
		{"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"}, // version 1
	} {
		limit, err := number(filepath.Join(dir, v.limit))
		if err != nil {
			continue // "max", or not this version
		}
		used, err := number(filepath.Join(dir, v.used))
		if err != nil {
			continue
		}
		stat, err := numbers(filepath.Join(dir, v.stat), " ")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return limit, max(limit-used+stat[v.cache], 0)
	}
	return math.MaxInt64, math.MaxInt64
}

func number(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
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
