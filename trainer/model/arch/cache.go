package arch

import "slices"

// CacheBlock is the number of tokens of a block of the key-value cache.
const CacheBlock = 32

// PassRows is how many rows an engine computes at most in one forward pass: decoding sequences and parts of prompts. A GPU multiplies few
// rows in the time of many.
func PassRows(gpu bool) int {
	if gpu {
		return 4096
	}
	return 512
}

// CacheGroup is layers that see equally far back, so that they keep keys and values of the same tokens.
type CacheGroup struct {
	Window int // tokens that a token sees, itself included; 0: all before it
	Layers []int
}

// CacheGroups returns the groups of the layers, in the order of their first layers.
func (c Config) CacheGroups() (groups []CacheGroup) {
	for i := range c.Layers {
		at := slices.IndexFunc(groups, func(g CacheGroup) bool { return g.Window == c.Window(i) })
		if at < 0 {
			at, groups = len(groups), append(groups, CacheGroup{Window: c.Window(i)})
		}
		groups[at].Layers = append(groups[at].Layers, i)
	}
	return groups
}

// Blocks is the number of blocks in which the group's layers keep a cache of so many tokens: all of them or, with a window,
// what so many conversations need at most while one pass computes so many rows.
func (g CacheGroup) Blocks(tokens, conversations, rows int) int {
	all := CacheBlocks(tokens)
	if g.Window == 0 {
		return all
	}
	const cut = 2 // blocks of which a window sees a part: its first and its last
	return min(all, conversations*(CacheBlocks(g.Window)+cut)+CacheBlocks(rows))
}

// WholeCache is the number of tokens of a cache in which each of so many sequences has room for so many tokens.
func WholeCache(sequences, tokens int) int { return sequences * CacheBlocks(tokens) * CacheBlock }

// CacheBlocks is the number of blocks of so many tokens of a sequence.
func CacheBlocks(tokens int) int { return (tokens + CacheBlock - 1) / CacheBlock }
