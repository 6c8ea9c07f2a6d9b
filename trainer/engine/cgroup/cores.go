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

// Cores are the cores that this process may compute on.
type Cores struct {
	N        int     // at least 1: of the quota the whole cores
	Machine  int     // the machine's
	Affinity int     // that the process may run on
	Quota    float64 // cores' worth of time that a control group leaves to it; 0: all
	Group    string  // folder of the control group with the quota
}

// Count counts the cores of this process.
func Count() Cores { return count("/", runtime.NumCPU()) }

// count counts them below another root, where affinity is the number that the process may run on.
func count(root string, affinity int) Cores {
	c := Cores{N: affinity, Machine: max(online(filepath.Join(root, "sys/devices/system/cpu/online")), affinity), Affinity: affinity}
	for _, g := range Groups(root, "cpu") {
		if quota := g.cores(); quota > 0 && (c.Quota == 0 || quota < c.Quota) {
			c.Quota, c.Group = quota, g.Dir
		}
	}
	if c.Quota > 0 {
		c.N = max(min(affinity, int(c.Quota)), 1)
	}
	return c
}

// String says how many cores there are, and what leaves no more.
func (c Cores) String() string {
	switch {
	case c.Quota > 0 && c.Quota < float64(c.Affinity):
		return fmt.Sprintf("%d of %d cores: a quota of %s (%s)", c.N, c.Machine, strconv.FormatFloat(c.Quota, 'g', 3, 64), c.Group)
	case c.Affinity < c.Machine:
		return fmt.Sprintf("%d of %d cores: the process's affinity", c.N, c.Machine)
	}
	return fmt.Sprintf("%d cores", c.N)
}

// cores is the group's quota: time on cores divided by the time in which it may be used. 0: it has none.
func (g Group) cores() float64 {
	var quota, period string
	if g.V1 {
		quota, period = word(filepath.Join(g.Dir, "cpu.cfs_quota_us"), 0), word(filepath.Join(g.Dir, "cpu.cfs_period_us"), 0)
	} else {
		quota, period = word(filepath.Join(g.Dir, "cpu.max"), 0), word(filepath.Join(g.Dir, "cpu.max"), 1)
	}
	q, err1 := strconv.ParseFloat(quota, 64) // "max" and -1 are none
	p, err2 := strconv.ParseFloat(period, 64)
	if cores := q / p; err1 == nil && err2 == nil && q > 0 && p > 0 && !math.IsInf(cores, 0) {
		return cores
	}
	return 0
}

// word is the i-th word of a file, "" if it has fewer.
func word(path string, i int) string {
	text, _ := os.ReadFile(path)
	if words := strings.Fields(string(text)); i < len(words) {
		return words[i]
	}
	return ""
}

// online counts the cores of a list such as 0-3,6.
func online(path string) (n int) {
	for part := range strings.SplitSeq(word(path, 0), ",") {
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
