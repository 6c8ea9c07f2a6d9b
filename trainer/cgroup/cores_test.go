package cgroup

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// tree writes files into a temporary folder, which the tests use as /.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCores(t *testing.T) {
	const (
		v2   = "sys/fs/cgroup/"
		v1   = "sys/fs/cgroup/cpu,cpuacct/"
		own  = "proc/self/cgroup"
		info = "proc/self/mountinfo"
		two  = "24 23 0:20 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		one  = "30 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
	)
	for name, c := range map[string]struct {
		files    map[string]string
		affinity int
		want     int
		says     string
	}{
		"nothing":                  {nil, 8, 8, "8 cores"},
		"affinity":                 {nil, 2, 2, "2 of 8 cores: the process's affinity"},
		"no quota":                 {map[string]string{v2 + "cpu.max": "max 100000\n"}, 8, 8, "8 cores"},
		"no quota, version 1":      {map[string]string{info: one, v1 + "cpu.cfs_quota_us": "-1\n", v1 + "cpu.cfs_period_us": "100000\n"}, 8, 8, "8 cores"},
		"half a core":              {map[string]string{info: two, v2 + "cpu.max": "50000 100000\n"}, 8, 1, "1 of 8 cores: a quota of 0.5 "},
		"three and a half":         {map[string]string{info: two, v2 + "cpu.max": "350000 100000\n"}, 8, 3, "3 of 8 cores: a quota of 3.5 "},
		"more than affinity":       {map[string]string{info: two, v2 + "cpu.max": "400000 100000\n"}, 2, 2, "2 of 8 cores: the process's affinity"},
		"more than there are":      {map[string]string{info: two, v2 + "cpu.max": "6400000 100000\n"}, 8, 8, "8 cores"},
		"another period":           {map[string]string{info: two, v2 + "cpu.max": "20000 10000\n"}, 8, 2, "2 of 8 cores: a quota of 2 "},
		"version 1":                {map[string]string{info: one, own: "4:cpuacct,cpu:/q\n0::/\n", v1 + "q/cpu.cfs_quota_us": "50000\n", v1 + "q/cpu.cfs_period_us": "100000\n"}, 8, 1, "cpuacct/q"},
		"a group around its own":   {map[string]string{info: two, own: "0::/pods/a/b\n", v2 + "pods/cpu.max": "200000 100000\n", v2 + "pods/a/b/cpu.max": "600000 100000\n"}, 8, 2, "cgroup/pods)"},
		"its own in a larger one":  {map[string]string{info: two, own: "0::/pods/a/b\n", v2 + "pods/cpu.max": "max 100000\n", v2 + "pods/a/b/cpu.max": "300000 100000\n"}, 8, 3, "pods/a/b)"},
		"a part of the tree":       {map[string]string{info: strings.Replace(two, " / /sys", " /docker/x /sys", 1), own: "0::/docker/x/y\n", v2 + "y/cpu.max": "100000 100000\n"}, 8, 1, "cgroup/y)"},
		"its own is the part":      {map[string]string{info: strings.Replace(one, " / /sys/fs/cgroup/cpu", " /docker/x /sys/fs/cgroup/cpu", 1), own: "4:cpu,cpuacct:/docker/x\n", v1 + "cpu.cfs_quota_us": "150000\n", v1 + "cpu.cfs_period_us": "100000\n"}, 8, 1, "a quota of 1.5 "},
		"elsewhere, with a space":  {map[string]string{info: "33 1 0:29 / /run/cg\\040q rw - cgroup none rw,cpu\n", own: "1:cpu:/q\n", "run/cg q/q/cpu.cfs_quota_us": "250000\n", "run/cg q/q/cpu.cfs_period_us": "100000\n"}, 8, 2, "2 of 8"},
		"both versions":            {map[string]string{info: two + one, own: "4:cpu,cpuacct:/\n0::/x\n", v2 + "x/memory.max": "5\n", v1 + "cpu.cfs_quota_us": "200000\n", v1 + "cpu.cfs_period_us": "100000\n"}, 8, 2, "2 of 8"},
		"a group outside its tree": {map[string]string{info: two, own: "0::/../..\n", v2 + "cpu.max": "200000 100000\n"}, 8, 2, "2 of 8"},
		"nonsense":                 {map[string]string{info: two, v2 + "cpu.max": "a lot\n", own: "\n::\n"}, 8, 8, "8 cores"},
		"no period":                {map[string]string{info: one, v1 + "cpu.cfs_quota_us": "50000\n", v1 + "cpu.cfs_period_us": "0\n"}, 8, 8, "8 cores"},
	} {
		files := map[string]string{"sys/devices/system/cpu/online": "0-3,5-8\n"}
		for path, text := range c.files {
			files[path] = text
		}
		got := usableCores(tree(t, files), c.affinity)
		if got.N != c.want || !strings.Contains(got.String(), c.says) {
			t.Errorf("%s: %d, %q; want %d, %q", name, got.N, got.String(), c.want, c.says)
		}
	}
}

// TestUsableCores: without cgroup limits on the way, the count is between 1 and the affinity that Go reports.
func TestUsableCores(t *testing.T) {
	if c := UsableCores(); c.N < 1 || c.N > runtime.NumCPU() || c.Machine < runtime.NumCPU() {
		t.Errorf("%+v", c)
	}
}

// TestOwnGroups: at least one of this process's control groups exists.
func TestOwnGroups(t *testing.T) {
	found := slices.ContainsFunc(append(groups("/", "cpu"), groups("/", "memory")...), func(g group) bool { _, err := os.Stat(g.dir); return err == nil })
	if _, err := os.Stat("/sys/fs/cgroup"); err == nil && !found {
		t.Errorf("no folder of %v exists", groups("/", "cpu"))
	}
}
