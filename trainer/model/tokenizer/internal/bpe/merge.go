package bpe

import (
	"errors"
	"fmt"
)

type merge struct {
	rank uint32 // lower ranks merge first
	id   int32  // of the merged token
}

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

func (m *Model) setMerges(vocab map[string]int32, merges [][2]string) error {
	if merges == nil {
		return errors.New("merges is missing")
	}
	m.merges = make(map[uint64]merge, len(merges))
	for rank, pair := range merges {
		left, okLeft := vocab[pair[0]]
		right, okRight := vocab[pair[1]]
		id, ok := vocab[pair[0]+pair[1]]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("merge %d, %.60q + %.60q: a part or the result is not in the vocabulary", rank, pair[0], pair[1])
		}
		m.merges[pairKey(left, right)] = merge{uint32(rank), id}
	}
	return nil
}

// scanLimit is the largest number of symbols for which scanning all pairs is faster than a heap.
const scanLimit = 48

const noRank = ^uint32(0)

// mergeShort merges in place, in time quadratic in the number of symbols.
func (m *Model) mergeShort(ids []int32) []int32 {
	var store [scanLimit]merge
	next := store[:len(ids)] // next[i]: the merge of ids[i] and ids[i+1]
	for i := range ids {
		next[i] = m.pair(ids, i)
	}
	for {
		best, at := noRank, 0
		for i := range ids {
			if next[i].rank < best {
				best, at = next[i].rank, i
			}
		}
		if best == noRank {
			return ids
		}
		ids[at] = next[at].id
		ids = append(ids[:at+1], ids[at+2:]...)
		next = append(next[:at+1], next[at+2:]...)
		next[at] = m.pair(ids, at)
		if at > 0 {
			next[at-1] = m.pair(ids, at-1)
		}
	}
}

func (m *Model) pair(ids []int32, i int) merge {
	if i+1 < len(ids) {
		if found, ok := m.merges[pairKey(ids[i], ids[i+1])]; ok {
			return found
		}
	}
	return merge{rank: noRank}
}

// mergeLong merges in place with a heap of candidates over a linked list, in time n log n.
func (m *Model) mergeLong(ids []int32) []int32 {
	n := int32(len(ids))
	before, after := make([]int32, n), make([]int32, n)
	for i := range n {
		before[i], after[i] = i-1, i+1
	}
	var queue candidates
	offer := func(i int32) {
		if j := after[i]; j < n {
			if found, ok := m.merges[pairKey(ids[i], ids[j])]; ok {
				queue.push(uint64(found.rank)<<32 | uint64(i))
			}
		}
	}
	for i := range n {
		offer(i)
	}
	const gone = int32(-1)
	for len(queue) > 0 {
		top := queue.pop()
		i := int32(uint32(top))
		j := after[i]
		if ids[i] == gone || j >= n {
			continue
		}
		found, ok := m.merges[pairKey(ids[i], ids[j])]
		if !ok || uint64(found.rank) != top>>32 {
			continue // a part of the pair has been merged with another neighbour
		}
		ids[i], ids[j] = found.id, gone
		after[i] = after[j]
		if after[i] < n {
			before[after[i]] = i
		}
		offer(i)
		if before[i] >= 0 {
			offer(before[i])
		}
	}
	kept := ids[:0]
	for i := int32(0); i < n; i = after[i] {
		kept = append(kept, ids[i])
	}
	return kept
}
