package measure

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
)

// Machine describes the machine and the software of a measurement.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	Threads  int    `json:"threads"`            // OpenMP threads of each provider
	ISA      string `json:"isa"`                // of our kernels
	Features string `json:"features,omitempty"` // of the CPU, as mgrpo version prints them; "" in older results
	L3Bytes  int64  `json:"l3_bytes"`
	Evicted  int64  `json:"evicted_bytes,omitempty"` // written before each sample with a cold cache; 0 in older results: 96 MiB
	RAMBytes int64  `json:"ram_bytes"`
	GPU      string `json:"gpu,omitempty"`    // the GPU that was measured; "" for a CPU
	Driver   string `json:"driver,omitempty"` // CUDA version of the GPU's driver
	VRAM     int64  `json:"vram_bytes,omitempty"`
	Kernel   string `json:"kernel"`
	LibTorch string `json:"libtorch"`
	Go       string `json:"go"`
	Commit   string `json:"commit"` // of the program; with "-dirty" if tracked files differed from it
}

// Examine describes this machine for a measurement of its device, "cpu" or "cuda:N", by a program built from commit.
func Examine(commit, device string, threads int) (Machine, error) {
	m := Machine{
		CPU: Processor(), Cores: cgroup.UsableCores().N, Threads: threads, ISA: kernels.ISA(), Features: torch.CPUFeatures(),
		L3Bytes: l3Bytes(), RAMBytes: kilobytes(field("/proc/meminfo", "MemTotal")),
		Kernel: line("/proc/sys/kernel/osrelease"), LibTorch: torch.Version(), Go: runtime.Version(), Commit: commit,
	}
	index, isGPU := strings.CutPrefix(device, "cuda:")
	if !isGPU {
		m.Evicted = evictedBytes()
		return m, nil
	}
	devices, err := cuda.Devices()
	if err != nil {
		return m, err
	}
	i, err := strconv.Atoi(index)
	if err != nil || i >= len(devices) {
		return m, fmt.Errorf("device %q does not exist: this machine has %d GPUs", device, len(devices))
	}
	m.GPU, m.VRAM, m.Driver = devices[i].Name, devices[i].Memory, cuda.Driver()
	return m, nil
}

// Processor returns the processor's name, or its architecture if Linux does not know the name. Clouds use one name for several generations
// of AMD's processors, so their family is added: 25 is Zen 3 and 4, 26 is Zen 5.
func Processor() string {
	name := cmp.Or(field("/proc/cpuinfo", "model name"), runtime.GOARCH)
	if strings.HasPrefix(name, "AMD") && !strings.ContainsAny(name, "0123456789") {
		name += fmt.Sprintf(" (family %s)", field("/proc/cpuinfo", "cpu family"))
	}
	return name
}

// Commit returns the commit of the repository in the working directory, with "-dirty" if tracked files differ from it, or "unknown"
// outside of a repository.
func Commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// evictedBytes returns the size of a buffer that leaves nothing else in the last-level cache: twice its size, but at most 1 GiB.
func evictedBytes() int64 {
	const maxEvicted = 1 << 30
	return min(max(leastEvicted, 2*l3Bytes()), maxEvicted)
}

const leastEvicted = 96 << 20

func l3Bytes() int64 { return kilobytes(line("/sys/devices/system/cpu/cpu0/cache/index3/size")) }

// Hot reports whether samples with a cold cache may have found inputs in the last-level cache, because less than its size was evicted.
func (m Machine) Hot() bool { return m.GPU == "" && cmp.Or(m.Evicted, leastEvicted) < m.L3Bytes }

// Slug returns a file name for results of this machine, such as amd-epyc-2c-avx2.
func (m Machine) Slug() string {
	words := func(name string) []string {
		return strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	}
	if m.GPU != "" {
		return strings.Join(words(m.GPU), "-")
	}
	return strings.Join(append(words(m.CPU), strconv.Itoa(m.Cores)+"c", m.ISA), "-")
}

// LoadAverage returns the number of runnable processes, averaged over a minute. It is about 0 on a quiet machine before a run.
func LoadAverage() float64 {
	first, _, _ := strings.Cut(line("/proc/loadavg"), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// line returns a file's first line, or "" if the file does not exist.
func line(path string) string {
	data, _ := os.ReadFile(path)
	first, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(first)
}

// field returns the value of "name: value" in a file of /proc.
func field(path, name string) string {
	data, _ := os.ReadFile(path)
	for l := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kilobytes parses "32768K" and "24000 kB" and returns bytes.
func kilobytes(s string) int64 {
	n, _ := strconv.ParseInt(strings.TrimRight(s, " kKB"), 10, 64)
	return n << 10
}
