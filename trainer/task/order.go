package task

import "sync"

// RowOrder is the training order of n rows. Every epoch visits each row once, in a permutation that depends only on the
// seed and the epoch.
type RowOrder struct {
	seed uint64
	n    int

	mu    sync.Mutex
	epoch int64
	perm  []int // permutation of epoch; nil before the first use
}

// NewRowOrder returns the order of n >= 1 rows.
func NewRowOrder(seed uint64, n int) *RowOrder { return &RowOrder{seed: seed, n: n} }

// At returns the row and the epoch of training query i, i >= 0.
func (o *RowOrder) At(i int64) (row int, epoch int64) {
	epoch = i / int64(o.n)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.perm == nil || o.epoch != epoch {
		o.epoch, o.perm = epoch, permutation(NewStream(o.seed, "order", epoch), o.n)
	}
	return o.perm[i%int64(o.n)], epoch
}

func permutation(s *Stream, n int) []int {
	perm := make([]int, n)
	for i := range perm {
		perm[i] = i
	}
	Shuffle(s, perm)
	return perm
}
