package cgroup

import "testing"

func TestHostMemory(t *testing.T) {
	const meminfo = "MemTotal:       1024 kB\nMemFree:  100 kB\nMemAvailable:    512 kB\nHugePages_Total:       0\n"
	const v2, v1 = "sys/fs/cgroup/", "sys/fs/cgroup/memory/"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Memory
	}{
		{"no control group", nil, Memory{1 << 20, 512 << 10}},
		{"no limit", map[string]string{v2 + "memory.max": "max\n", v2 + "memory.current": "5\n"}, Memory{1 << 20, 512 << 10}},
		{"a limit", map[string]string{v2 + "memory.max": "300000\n", v2 + "memory.current": "250000\n",
			v2 + "memory.stat": "anon 9\ninactive_file 10000\n"}, Memory{300000, 60000}},
		{"a limit above the machine", map[string]string{v2 + "memory.max": "3000000000\n", v2 + "memory.current": "1\n"}, Memory{1 << 20, 512 << 10}},
		{"over the limit", map[string]string{v2 + "memory.max": "100\n", v2 + "memory.current": "200\n"}, Memory{100, 0}},
		{"version 1", map[string]string{v1 + "memory.limit_in_bytes": "300000\n", v1 + "memory.usage_in_bytes": "250000\n",
			v1 + "memory.stat": "cache 7\ntotal_inactive_file 20000\n"}, Memory{300000, 70000}},
		{"a limit of the group itself", map[string]string{"proc/self/cgroup": "0::/system.slice/job_7\n", v2 + "memory.max": "max\n",
			v2 + "system.slice/job_7/memory.max": "300000\n", v2 + "system.slice/job_7/memory.current": "100000\n"}, Memory{300000, 200000}},
		{"a limit of a group around it", map[string]string{"proc/self/cgroup": "9:cpu,memory:/slurm/job_7\n0::/x\n",
			v1 + "slurm/memory.limit_in_bytes": "200000\n", v1 + "slurm/memory.usage_in_bytes": "150000\n", v1 + "slurm/job_7/memory.limit_in_bytes": "300000\n",
			v1 + "slurm/job_7/memory.usage_in_bytes": "150000\n"}, Memory{200000, 50000}},
		{"nonsense", map[string]string{v2 + "memory.max": "a lot\n"}, Memory{1 << 20, 512 << 10}},
	} {
		files := map[string]string{"proc/meminfo": meminfo}
		for k, v := range c.files {
			files[k] = v
		}
		if got, err := hostMemory(tree(t, files)); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
	if _, err := hostMemory(t.TempDir()); err == nil {
		t.Error("memory without /proc")
	}
	if _, err := hostMemory(tree(t, map[string]string{"proc/meminfo": "MemFree: 1 kB"})); err == nil {
		t.Error("memory without MemTotal")
	}
	if m, err := HostMemory(); err != nil || m.Available <= 0 || m.Available > m.Total {
		t.Errorf("this machine: %+v, %v", m, err)
	}
}
