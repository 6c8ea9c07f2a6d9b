package measure

import (
	"os"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda"
)

// Clock times work on a device.
type Clock interface {
	// Evict fills the caches with other data. It is called before samples with a cold cache.
	Evict()
	// Time runs work and returns its duration and, with a cold cache, the peak growth of memory in bytes.
	Time(cache Cache, work func() error) (timing, error)
	Close() error
}

// timing is one sample.
type timing struct {
	seconds float64
	grown   int64 // bytes
}

// NewClock returns the clock of the scope's device. It is valid while the scope lives.
func NewClock(s *torch.Scope) (Clock, error) {
	if !s.Device().IsCUDA() {
		return processor{}, nil
	}
	timer, err := cuda.NewTimer(s.Device().Index(), s.Stream())
	if err != nil {
		return nil, err
	}
	return &gpu{s, timer, s.Empty(torch.Uint8, gpuCacheBytes)}, nil
}

// processor is the clock for work on this process's threads.
type processor struct{}

func (processor) Evict() {
	const line = 8 // words of a cache line
	v := evictor()
	for i := 0; i < len(v); i += line {
		v[i]++
	}
}

var evictor = sync.OnceValue(func() []uint64 { return make([]uint64, evictedBytes()/8) })

func (processor) Time(cache Cache, work func() error) (t timing, err error) {
	timed := func() {
		start := time.Now()
		err = work()
		t.seconds = time.Since(start).Seconds()
	}
	if cache == Hot { // reading the process's memory would evict hot data
		timed()
	} else {
		t.grown = peakGrowth(timed)
	}
	return t, err
}

// peakGrowth runs work and returns the peak growth of the process's resident memory in bytes. It returns 0 if Linux does not allow the
// process to reset its peak.
func peakGrowth(work func()) int64 {
	// 5 resets VmHWM: see proc_pid_clear_refs(5).
	if os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) != nil {
		work()
		return 0
	}
	before := resident("VmRSS")
	work()
	return max(0, resident("VmHWM")-before)
}

func resident(name string) int64 { return kilobytes(field("/proc/self/status", name)) }

func (processor) Close() error { return nil }

// gpu is the clock of a GPU's stream, with two events around the work. Evict's kernels are still running while the work is launched, so
// the launches' time is not measured.
type gpu struct {
	scope *torch.Scope
	timer *cuda.Timer
	other *torch.Tensor
}

const gpuCacheBytes = 512 << 20 // several times the cache of any GPU; takes a tenth of a millisecond

func (g *gpu) Evict() { g.other.Zero_() }

// Time counts the memory of LibTorch's allocator. It does not see the scratch of our own kernels, which is small.
func (g *gpu) Time(cache Cache, work func() error) (t timing, err error) {
	before := g.scope.Memory().Allocated
	g.scope.ResetPeak()
	if err := g.timer.Start(); err != nil {
		return t, err
	}
	if err := work(); err != nil {
		return t, err
	}
	elapsed, err := g.timer.Stop()
	t.seconds = elapsed.Seconds()
	if cache == Cold {
		t.grown = max(0, g.scope.Memory().Peak-before)
	}
	return t, err
}

func (g *gpu) Close() error { return g.timer.Close() }
