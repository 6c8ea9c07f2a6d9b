package torch

// #include "mgrpo_torch.h"
import "C"

import "sync"

// loans counts the OpenMP threads of the process's CPU devices. Each device has its own share.
var loans threadLoans

type threadLoans struct {
	mu    sync.Mutex
	limit int // maximum of used after a loan; 0: no loans
	all   int // sum of the shares of open devices
	used  int // shares of devices that run a job, and loans; temporarily above all when a lender's job begins
}

// SetIdleThreadLimit allows the process's CPU devices to use the threads of idle devices (Scope.OnIdleThreads), with up to
// `limit` threads in use at once. 0, the default, disallows it.
func SetIdleThreadLimit(limit int) {
	loans.mu.Lock()
	defer loans.mu.Unlock()
	loans.limit = limit
}

func (l *threadLoans) open(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all += n
}

func (l *threadLoans) use(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used += n
}

// borrow takes all idle threads, up to the limit, and returns their number.
func (l *threadLoans) borrow() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = max(min(l.all, l.limit)-l.used, 0)
	l.used += n
	return n
}

// mayLend reports whether a device with this share may lend its threads to other devices.
func (l *threadLoans) mayLend(share int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit > 0 && l.all > share
}

// begin counts the device's threads as used when a job begins.
func (d *Device) begin() {
	if !d.cuda {
		loans.use(d.threads)
	}
}

// end counts the device's threads as idle again. It ends the OpenMP team of a lender. libgomp would count an idle
// team among the threads that share the cores, and let the borrower's threads sleep between two parallel regions.
func (d *Device) end() {
	if d.cuda {
		return
	}
	if d.threads > 1 && loans.mayLend(d.threads) {
		C.mgt_use_threads(C.int(d.threads))
	}
	loans.use(-d.threads)
}

// OnIdleThreads runs f on the threads of the device and, if SetIdleThreadLimit allows it, on the threads of the process's
// other CPU devices that are idle when f begins. Without it, agents that wait for each other would leave cores idle. The
// number of threads varies, so f must not depend on it; LibTorch's matrix products do. Calls must not be nested.
func (s *Scope) OnIdleThreads(f func()) {
	s.current("on idle threads")
	borrowed := 0
	if !s.dev.cuda {
		borrowed = loans.borrow()
	}
	if borrowed > 0 {
		defer loans.use(-borrowed)
		C.mgt_use_threads(C.int(s.dev.threads + borrowed))
		defer C.mgt_use_threads(C.int(s.dev.threads))
	}
	f()
}

// threads returns the number of threads that OpenMP would use now, for tests.
func (s *Scope) threads() int {
	s.current("threads")
	return int(C.mgt_threads())
}
