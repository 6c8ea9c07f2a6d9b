package arch

import (
	"fmt"
	"math"
)

// Queries scales queries in families that do so.
type Queries struct {
	Scalar float64 // query_pre_attn_scalar: scores are divided by its square root; 0: by the square root of HeadDim
	Growth QueryGrowth
}

// QueryGrowth scales queries by their position p, after rotation, by 1 + Beta·ln(1 + ⌊p/Positions⌋), as Llama 4 and
// Ministral 3 do. The zero value does not change queries.
type QueryGrowth struct {
	Beta      float64 // llama_4_scaling_beta
	Positions int     // original_max_position_embeddings
}

// At returns the factor of queries at a position.
func (g QueryGrowth) At(position int) float64 {
	if g == (QueryGrowth{}) {
		return 1
	}
	return 1 + g.Beta*math.Log(1+float64(position/g.Positions))
}

func (g QueryGrowth) validate() error {
	switch {
	case g == (QueryGrowth{}):
		return nil
	case !positiveFinite(g.Beta):
		return fmt.Errorf("llama_4_scaling_beta is %g: must be positive and finite, or 0", g.Beta)
	case g.Positions < 1 || g.Positions > maxPosition:
		return fmt.Errorf("original_max_position_embeddings is %d: must be 1 to %d", g.Positions, maxPosition)
	}
	return nil
}

// readQueryGrowth reads both keys, which transformers requires, from rope_parameters.
func readQueryGrowth(k *keys, c *Config) {
	var g QueryGrowth
	k.require("llama_4_scaling_beta", originalPositions)
	k.float("llama_4_scaling_beta", &g.Beta)
	k.integer(originalPositions, &g.Positions)
	if g.Beta != 0 {
		c.Queries.Growth = g
	}
}
