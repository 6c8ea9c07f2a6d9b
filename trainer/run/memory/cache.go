package memory

import (
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// cacheBytes returns the memory of the key-value cache of an engine that samples for several agents. Layers with a
// window keep at most the windows.
func cacheBytes(cfg *config.Config, agents []*config.Agent, c arch.Config, size int64, gpu bool) (bytes int64) {
	cache := cfg.CacheOf(agents, c.MaxPosition)
	for _, g := range c.CacheGroups() {
		blocks := int64(g.Blocks(cache.Tokens, cache.Conversations, arch.PassRows(gpu)))
		for _, layer := range g.Layers {
			bytes += blocks * arch.CacheBlock * int64(c.CacheWidth(layer)) * size
		}
	}
	return bytes
}

// stateBytes returns the memory of the recurrent states of an engine that samples for several agents.
func stateBytes(cfg *config.Config, agents []*config.Agent, c arch.Config, size int64) int64 {
	cache := cfg.CacheOf(agents, c.MaxPosition)
	states, inputs := c.RecurrentState()
	return int64(arch.RecurrentStates(cache.Slots, cache.Conversations)) * (4*states + size*inputs)
}
