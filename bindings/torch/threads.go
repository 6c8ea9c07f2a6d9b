package torch

// #include "mgrpo_torch.h"
import "C"

import "sync"

// cpuThreads counts the OpenMP threads of the process's CPU devices. Each device has its own share.
var cpuThreads threadBudget

// threadBudget counts threads that several devices may use.
type threadBudget struct {
	mu    sync.Mutex
	limit int // maximum of used after takeIdle; 0: takeIdle takes none
	all   int // sum of the shares of open devices
	// Threads of devices that run a job, and those of takeIdle. It is larger than `all` while a device runs a job and another one still
	// uses its threads.
	used int
}

// SetIdleThreadLimit allows the process's CPU devices to use the threads of idle devices (Scope.OnIdleThreads), with up to
// `limit` threads in use at once. 0, the default, disallows it.
func SetIdleThreadLimit(limit int) {
	cpuThreads.mu.Lock()
	defer cpuThreads.mu.Unlock()
	cpuThreads.limit = limit
}

func (l *threadBudget) addShare(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all += n
}

func (l *threadBudget) use(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used += n
}

// takeIdle takes all idle threads, up to the limit, and returns their number.
func (l *threadBudget) takeIdle() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = max(min(l.all, l.limit)-l.used, 0)
	l.used += n
	return n
}

// shareable reports whether other devices may use the threads of a device with this share while it is idle.
func (l *threadBudget) shareable(share int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit > 0 && l.all > share
}

// begin counts the device's threads as used when a job begins.
func (d *Device) begin() {
	if !d.cuda {
		cpuThreads.use(d.threads)
	}
}

// end counts the device's threads as idle again. If other devices may use them, it ends their OpenMP team. libgomp would count an
// idle team among the threads that share the cores, and let the other device's threads sleep between two parallel regions.
func (d *Device) end() {
	if d.cuda {
		return
	}
	if d.threads > 1 && cpuThreads.shareable(d.threads) {
		C.mgt_use_threads(C.int(d.threads))
	}
	cpuThreads.use(-d.threads)
}

// OnIdleThreads runs f on the threads of the device and, if SetIdleThreadLimit allows it, on the threads of the process's
// other CPU devices that are idle when f begins. Without it, agents that wait for each other would leave cores idle. The
// number of threads varies, so f must not depend on it; LibTorch's matrix products do. Calls must not be nested.
func (s *Scope) OnIdleThreads(f func()) {
	s.current("on idle threads")
	extra := 0
	if !s.dev.cuda {
		extra = cpuThreads.takeIdle()
	}
	if extra > 0 {
		defer cpuThreads.use(-extra)
		C.mgt_use_threads(C.int(s.dev.threads + extra))
		defer C.mgt_use_threads(C.int(s.dev.threads))
	}
	f()
}

// threads returns the number of threads that OpenMP would use now, for tests.
func (s *Scope) threads() int {
	s.current("threads")
	return int(C.mgt_threads())
}
