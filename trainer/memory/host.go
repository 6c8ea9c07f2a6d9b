package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Machine is host memory in bytes.
type Machine struct {
	Total     int64
	Available int64 // memory that this process can still get: free memory, and caches that the kernel can drop
}

// Host reads the machine's memory from the kernel's files below root ("/"; tests use another folder). Where the limit
// of this process's control group, or of one that it is in, is lower, it counts instead.
func Host(root string) (Machine, error) {
	m, err := machineMemory(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return m, err
	}
	for _, g := range groups(root) {
		limit, free := g.memory()
		m.Total, m.Available = min(m.Total, limit), min(m.Available, free)
	}
	return m, nil
}

// group is a control group's folder.
type group struct {
	dir string
	v1  bool
}

// groups are the control groups of this process and those that they are in: each may have a limit.
func groups(root string) (all []group) {
	mounts := map[bool]string{false: filepath.Join(root, "sys/fs/cgroup"), true: filepath.Join(root, "sys/fs/cgroup/memory")}
	own := map[bool]string{}
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // without it there are the uppermost
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && (f[1] == "" || slices.Contains(strings.Split(f[1], ","), "memory")) {
			own[f[1] != ""] = f[2]
		}
	}
	for v1, mount := range mounts {
		at := filepath.Clean("/" + own[v1])
		for ; at != "/"; at = filepath.Dir(at) {
			all = append(all, group{filepath.Join(mount, at), v1})
		}
		all = append(all, group{mount, v1})
	}
	return all
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

// memory is the limit of the control group and the memory that is left of it; without a limit both are
// math.MaxInt64. The kernel can drop the inactive part of the group's file cache, so this part counts as left.
func (g group) memory() (limit, free int64) {
	limits, used, cache := "memory.max", "memory.current", "inactive_file"
	if g.v1 {
		limits, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	}
	limit, err := number(filepath.Join(g.dir, limits))
	if err != nil { // "max", or there is no such group
		return math.MaxInt64, math.MaxInt64
	}
	n, err := number(filepath.Join(g.dir, used))
	if err != nil {
		return math.MaxInt64, math.MaxInt64
	}
	stat, err := numbers(filepath.Join(g.dir, "memory.stat"), " ")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return math.MaxInt64, math.MaxInt64
	}
	return limit, max(limit-n+stat[cache], 0)
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
