package torch

// #include "mgrpo_torch.h"
import "C"

import "sync"

// loans is about the OpenMP threads of the process's CPU devices, each of which has a share of its own.
var loans threadLoans

type threadLoans struct {
	mu    sync.Mutex
	limit int // no loan makes used larger than this; 0: nothing is lent
	all   int // shares of the devices that are open
	used  int // shares of those that run a job, and loans; more than all for a while, when a lender's job begins
}

// LendThreads lets the process's CPU devices lend each other the threads of those that are idle (Scope.OnIdleThreads), up to `limit` in use at
// once; 0, as a process begins with, ends that.
func LendThreads(limit int) {
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

// borrow takes all that are idle.
func (l *threadLoans) borrow() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = max(min(l.all, l.limit)-l.used, 0)
	l.used += n
	return n
}

// lends says whether a device with this share has others to lend it to.
func (l *threadLoans) lends(share int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit > 0 && l.all > share
}

// begin counts the device's threads as used: a job begins.
func (d *Device) begin() {
	if !d.cuda {
		loans.use(d.threads)
	}
}

// end counts them as idle again. A lender's idle team would count among the threads that share the cores, and libgomp would send the borrower's threads to
// sleep between two parallel regions: so the team is ended.
func (d *Device) end() {
	if d.cuda {
		return
	}
	if d.threads > 1 && loans.lends(d.threads) {
		C.mgt_use_threads(C.int(d.threads))
	}
	loans.use(-d.threads)
}

// OnIdleThreads runs f on the threads of the device and, where LendThreads allows it, on those of the process's other CPU devices that do nothing
// when it begins: agents that wait for each other would leave cores idle otherwise. How many there are is left to chance, so it is for
// what does not depend on it, as LibTorch's matrix products do. It does not nest.
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

// threads is how many OpenMP would use now; tests ask.
func (s *Scope) threads() int {
	s.current("threads")
	return int(C.mgt_threads())
}
