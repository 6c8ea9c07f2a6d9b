package task

import (
	"hash/fnv"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Stream is a deterministic random stream with the key (seed, name, index). Each row, split and epoch has its own
// stream, so its draws do not depend on the draws from other streams.
type Stream struct {
	key [2]uint32
	t   uint64
}

// NewStream returns the stream of (seed, name, index).
func NewStream(seed uint64, name string, index int64) *Stream {
	return &Stream{key: mgrpo.StreamKey("mgrpo.task.v1", seed, name, index)}
}

// IntN draws uniformly from 0..n-1, 1 <= n < 2^32.
func (s *Stream) IntN(n int) int {
	x, _ := mgrpo.Bounded(s.key, s.t, uint32(n))
	s.t++
	return int(x)
}

// Chance returns true with probability p, with a resolution of 1/2^31.
func (s *Stream) Chance(p float64) bool { return float64(s.IntN(1<<31)) < p*(1<<31) }

// Shuffle permutes x in place (Fisher-Yates).
func Shuffle[T any](s *Stream, x []T) {
	for i := len(x) - 1; i > 0; i-- {
		j := s.IntN(i + 1)
		x[i], x[j] = x[j], x[i]
	}
}

// Hash returns a number for a name, for use in seeds: FNV-1a of its bytes.
func Hash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

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
		o.epoch, o.perm = epoch, make([]int, o.n)
		for i := range o.perm {
			o.perm[i] = i
		}
		Shuffle(NewStream(o.seed, "order", epoch), o.perm)
	}
	return o.perm[i%int64(o.n)], epoch
}
