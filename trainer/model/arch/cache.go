package arch

import "slices"

// CacheBlock is the number of tokens of a block of the key-value cache.
const CacheBlock = 32

// PassRows returns the largest number of rows that an engine computes in one forward pass: decoding sequences and parts of
// prompts. A GPU takes about as long for few rows as for many.
func PassRows(gpu bool) int {
	if gpu {
		return 4096
	}
	return 512
}

// CacheGroup is a set of layers with the same window, so that they keep keys and values of the same tokens. Layers without keys and values
// are in no group, and neither are layers with a recurrent state.
type CacheGroup struct {
	Window int // number of tokens that a token sees, including itself; 0: all tokens before it
	Layers []int
}

// CacheGroups returns the groups of the layers, in the order of their first layers.
func (c Config) CacheGroups() (groups []CacheGroup) {
	for i := range c.Layers {
		l := c.Layer(i)
		if l.KVLayer() != i || l.Recurs() {
			continue
		}
		at := slices.IndexFunc(groups, func(g CacheGroup) bool { return g.Window == l.Window() })
		if at < 0 {
			at, groups = len(groups), append(groups, CacheGroup{Window: l.Window()})
		}
		groups[at].Layers = append(groups[at].Layers, i)
	}
	return groups
}

// Blocks returns the number of blocks that the group's layers need to cache the given number of tokens. With a window it is
// at most the number that the given number of conversations needs while one pass computes the given number of rows.
func (g CacheGroup) Blocks(tokens, conversations, rows int) int {
	all := CacheBlocks(tokens)
	if g.Window == 0 {
		return all
	}
	const cut = 2 // a window may see only a part of its first and of its last block
	return min(all, conversations*(CacheBlocks(g.Window)+cut)+CacheBlocks(rows))
}

// WholeCache returns the number of tokens of a cache that has room for the given number of tokens in each sequence.
func WholeCache(sequences, tokens int) int { return sequences * CacheBlocks(tokens) * CacheBlock }

// CacheBlocks returns the number of blocks that hold the given number of tokens of one sequence.
func CacheBlocks(tokens int) int { return (tokens + CacheBlock - 1) / CacheBlock }
