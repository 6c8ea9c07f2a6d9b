package torch

// #include "mgrpo_torch.h"
import "C"

import "sync"

// cores counts the OpenMP threads of the process's CPU devices, each of which has a share of its own.
var cores threadCount

type threadCount struct {
	mu   sync.Mutex
	all  int // of the devices that are open
	used int // of those that run a job, and what these have borrowed; more than all for a while, when a lender's job begins
}

func (c *threadCount) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all += n
}

func (c *threadCount) use(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used += n
}

// borrow takes all that are idle.
func (c *threadCount) borrow() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = max(c.all-c.used, 0)
	c.used += n
	return n
}

// OnIdleThreads runs f on the threads of the device and on those of the process's other CPU devices that do nothing when it begins: agents that wait
// for each other would leave cores idle otherwise. How many there are is left to chance, so it is for what does not depend on it.
// LibTorch's matrix products do.
func (s *Scope) OnIdleThreads(f func()) {
	s.current("on idle threads")
	borrowed := 0
	if !s.dev.cuda {
		borrowed = cores.borrow()
	}
	if borrowed > 0 {
		defer cores.use(-borrowed)
		C.mgt_borrow_threads(s.dev.native, C.int(borrowed))
		defer C.mgt_borrow_threads(s.dev.native, 0)
	}
	f()
}

// threads is how many OpenMP would use now.
func (s *Scope) threads() int {
	s.current("threads")
	return int(C.mgt_threads())
}
