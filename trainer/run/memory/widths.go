package memory

import "github.com/mgrpo/mgrpo/trainer/model/arch"

// The largest width over the layers: of keys, of queries, of both with values, and of the MLP.
func kvWidth(c arch.Config) int64    { return widest(c, c.KVWidth) }
func queryWidth(c arch.Config) int64 { return int64(c.Heads) * widest(c, c.HeadDimOf) }
func qkvWidth(c arch.Config) int64   { return queryWidth(c) + 2*kvWidth(c) }
func ffnWidth(c arch.Config) int64   { return widest(c, c.FFNOf) }

func widest(c arch.Config, of func(layer int) int) (most int64) {
	for i := range c.Layers {
		most = max(most, int64(of(i)))
	}
	return most
}

// unlayeredValues guesses the values of a token in a model whose layers are unknown. It is two
// for each row of matrices whose width is the hidden size, as in a decoder.
func unlayeredValues(c arch.Config) int64 { return 2 * c.Parameters() / int64(c.Hidden) }
