package task

import "github.com/mgrpo/mgrpo/trainer/mgrpo"

// Stream is a deterministic source of small random choices, keyed by (seed, name, index): rows, splits
// and epochs get streams of their own, so that none depends on how much another has drawn.
type Stream struct {
	key [2]uint32
	t   uint64
}

// NewStream returns the stream of one name and index under a seed.
func NewStream(seed uint64, name string, index int64) *Stream {
	return &Stream{key: mgrpo.StreamKey("mgrpo.task.v1", seed, name, index)}
}

// IntN draws from 0..n-1, 1 <= n < 2^32.
func (s *Stream) IntN(n int) int {
	x, _ := mgrpo.Bounded(s.key, s.t, uint32(n))
	s.t++
	return int(x)
}

// Chance is true with probability p, to 1/2^31.
func (s *Stream) Chance(p float64) bool { return float64(s.IntN(1<<31)) < p*(1<<31) }

// Shuffle permutes x in place (Fisher-Yates).
func Shuffle[T any](s *Stream, x []T) {
	for i := len(x) - 1; i > 0; i-- {
		j := s.IntN(i + 1)
		x[i], x[j] = x[j], x[i]
	}
}
