package cgroup

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Cores describes the cores that this process may compute on.
type Cores struct {
	N        int     // usable cores, at least 1; a quota is rounded down
	Machine  int     // cores of the machine
	Affinity int     // cores on which the process may run
	Quota    float64 // core time that a control group allows, in cores; 0: no limit
	Group    string  // folder of the control group with the quota
}

// UsableCores returns the cores of this process.
func UsableCores() Cores { return usableCores("/", runtime.NumCPU()) }

// usableCores does the work of UsableCores, with the kernel's files below another root. affinity is the number of
// cores on which the process may run.
func usableCores(root string, affinity int) Cores {
	c := Cores{N: affinity, Machine: max(countCores(filepath.Join(root, "sys/devices/system/cpu/online")), affinity), Affinity: affinity}
	for _, g := range groups(root, "cpu") {
		if quota := g.cores(); quota > 0 && (c.Quota == 0 || quota < c.Quota) {
			c.Quota, c.Group = quota, g.dir
		}
	}
	if c.Quota > 0 {
		c.N = max(min(affinity, int(c.Quota)), 1)
	}
	return c
}

// String returns the number of cores, and the limit that excludes the others.
func (c Cores) String() string {
	switch {
	case c.Quota > 0 && c.Quota < float64(c.Affinity):
		return fmt.Sprintf("%d of %d cores: a quota of %s (%s)", c.N, c.Machine, strconv.FormatFloat(c.Quota, 'g', 3, 64), c.Group)
	case c.Affinity < c.Machine:
		return fmt.Sprintf("%d of %d cores: the process's affinity", c.N, c.Machine)
	}
	return fmt.Sprintf("%d cores", c.N)
}

// cores returns the group's quota: time on cores divided by the period in which it may be used. 0: there is no quota.
func (g group) cores() float64 {
	var quota, period string
	if g.v1 {
		quota, period = fileWord(filepath.Join(g.dir, "cpu.cfs_quota_us"), 0), fileWord(filepath.Join(g.dir, "cpu.cfs_period_us"), 0)
	} else {
		quota, period = fileWord(filepath.Join(g.dir, "cpu.max"), 0), fileWord(filepath.Join(g.dir, "cpu.max"), 1)
	}
	q, err1 := strconv.ParseFloat(quota, 64) // "max" and -1 mean that there is no quota
	p, err2 := strconv.ParseFloat(period, 64)
	if cores := q / p; err1 == nil && err2 == nil && q > 0 && p > 0 && !math.IsInf(cores, 0) {
		return cores
	}
	return 0
}

// fileWord returns the i-th word of a file, or "" if it has fewer words.
func fileWord(path string, i int) string {
	text, _ := os.ReadFile(path)
	if words := strings.Fields(string(text)); i < len(words) {
		return words[i]
	}
	return ""
}

// countCores counts the cores of a list such as 0-3,6.
func countCores(path string) (n int) {
	for part := range strings.SplitSeq(fileWord(path, 0), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 == nil && err2 == nil && a <= b {
			n += b - a + 1
		}
	}
	return n
}
