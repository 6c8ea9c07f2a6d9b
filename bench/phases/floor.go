package phases

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/arch"
)

// The least that a phase computes and moves. A prompt that several rollouts share is computed once; a rollout's last
// token is sampled and read no more; logits are of sampled tokens alone; element-wise work is not counted.

// matrices is the number of weights of the layers' linear maps that a token passes, head the output projection's.
func matrices(c arch.Config) (layers, head float64) {
	d, q, kv, mlp := c.Hidden, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, 3*c.Hidden*c.FFN
	if m := c.Mixture; m != nil {
		mlp = d*m.Experts + m.PerToken*3*d*m.FFN
	}
	return float64(c.Layers * (d*(q+2*kv) + q*d + mlp)), float64(d * c.VocabSize)
}

// unread is how many weights of experts a pass of so many rows leaves out, if each expert is as likely as another.
func unread(c arch.Config, rows int) float64 {
	m := c.Mixture
	if m == nil {
		return 0
	}
	left := math.Pow(1-float64(m.PerToken)/float64(m.Experts), float64(rows))
	return left * float64(c.Layers*m.Experts*3*c.Hidden*m.FFN)
}

// pairs is how many (query, key) pairs attention looks at.
func (s shape) pairs() float64 {
	p, n := float64(s.promptTokens), float64(s.newTokens-1)
	return float64(s.prompts) * (p*(p+1)/2 + float64(s.rollouts)*(n*p+n*(n+1)/2))
}

// forwardFLOPs counts the operations of one forward pass; headRows is the number of rows of logits.
func forwardFLOPs(c arch.Config, s shape, headRows int) float64 {
	layers, head := matrices(c)
	tokens := s.prompts * (s.promptTokens + s.rollouts*(s.newTokens-1))
	return 2*(layers*float64(tokens)+head*float64(headRows)) + 4*float64(c.Layers*c.Heads*c.HeadDim)*s.pairs()
}

const forwardFormula = "2·(matrices·tokens + head·rows) + 4·layers·width·pairs"

func rolloutFLOPs(c arch.Config, s shape) measure.Amount {
	return measure.Amount{Formula: forwardFormula + ", prompts once", Value: forwardFLOPs(c, s, s.prompts+s.sequences()*(s.newTokens-1))}
}

func learnerFLOPs(c arch.Config, s shape) measure.Amount {
	return measure.Amount{Formula: fmt.Sprintf("3·(%s), prompts once", forwardFormula), Value: 3 * forwardFLOPs(c, s, s.sequences()*s.newTokens)}
}

func stepFLOPs(c arch.Config, s shape) measure.Amount {
	return measure.Amount{Formula: "rollout + learner", Value: rolloutFLOPs(c, s).Value + learnerFLOPs(c, s).Value}
}

func decodeBytes(c arch.Config, s shape, weight float64) measure.Amount {
	return measure.Amount{Formula: fmt.Sprintf("%g·parameters·new tokens: every pass reads the weights, of experts those that a row chose", weight),
		Value: weight * (float64(c.Parameters()) - unread(c, s.sequences())) * float64(s.newTokens)}
}

func noBytes(arch.Config, shape, float64) measure.Amount {
	return measure.Amount{Formula: "0: bound by FLOPs"}
}

func stepBytes(c arch.Config, s shape, weight float64) measure.Amount {
	return measure.Amount{
		Formula: "rollout + 32·parameters: AdamW reads the gradient twice and moves weights and moments both ways",
		Value:   decodeBytes(c, s, weight).Value + 32*float64(c.Parameters()),
	}
}
