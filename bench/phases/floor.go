package phases

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// The least work of a phase. A prompt that several rollouts share is computed once. A rollout's last token is sampled and not read
// again. Only sampled tokens have logits. Element-wise work and recurrent states are not counted.

// matrices returns the number of weights in the linear maps that a token passes: of the layers, and of the output projection (head).
func matrices(c arch.Config) (layers, head float64) {
	d := c.Hidden
	for i := range c.Layers {
		l := c.Layer(i)
		q, kv, mlp := c.Heads*l.HeadDim(), l.KVWidth(), 3*d*l.FFN()
		if m := c.Mixture; m != nil {
			routed := d*m.Experts + m.PerToken*3*d*m.FFN
			if !c.ExpertsBesideMLP() {
				mlp = 0
			}
			mlp += routed
		}
		if l.KVLayer() != i {
			kv = 0
		}
		operator := d*(q+2*kv) + q*d
		switch g := c.GatedDelta; {
		case l.Convolves():
			operator = 4 * d * d
		case l.Recurs():
			operator = d*(g.Channels()+g.Values()+2*g.ValueHeads) + g.Values()*d
		case c.GatedAttention():
			operator += d * q
		}
		layers += float64(operator + mlp + 3*d*c.LayerInputs())
	}
	return layers, float64(d * c.VocabSize)
}

// unreadWeights returns the number of experts' weights that a pass of this many rows does not read, if all experts are equally likely.
func unreadWeights(c arch.Config, rows int) float64 {
	m := c.Mixture
	if m == nil {
		return 0
	}
	unread := math.Pow(1-float64(m.PerToken)/float64(m.Experts), float64(rows))
	return unread * float64(c.Layers*m.Experts*3*c.Hidden*m.FFN)
}

// pairs returns the number of (query, key) pairs of attention.
func (s shape) pairs() float64 {
	p, n := float64(s.promptTokens), float64(s.newTokens-1)
	return float64(s.prompts) * (p*(p+1)/2 + float64(s.rollouts)*(n*p+n*(n+1)/2))
}

// tokens returns the number of computed tokens.
func (s shape) tokens() int { return s.prompts * (s.promptTokens + s.rollouts*(s.newTokens-1)) }

// forwardFLOPs returns the operations of one forward pass. headRows is the number of rows of logits.
func forwardFLOPs(c arch.Config, s shape, headRows int) float64 {
	layers, head := matrices(c)
	return 2*(layers*float64(s.tokens())+head*float64(headRows)) + pairFLOPs(c)*s.pairs()
}

// pairFLOPs returns the operations of a (query, key) pair in all layers that attend.
func pairFLOPs(c arch.Config) float64 {
	attend := 0
	for i := range c.Layers {
		if c.Layer(i).Attends() {
			attend++
		}
	}
	return 4 * float64(attend*c.Heads*c.HeadDim)
}

const forwardFormula = "2·(matrices·tokens + head·rows) + 4·layers·width·pairs"

// adapterFLOPs returns the operations of products with adapters. adapters is the number of their parameters.
func (s shape) adapterFLOPs(adapters int64) float64 {
	return 2 * float64(adapters) * float64(s.tokens())
}

func rolloutFLOPs(c arch.Config, s shape, adapters int64) measure.Amount {
	return measure.Amount{Formula: forwardFormula + ", prompts once" + withAdapters(adapters, 1),
		Value: forwardFLOPs(c, s, s.prompts+s.sequences()*(s.newTokens-1)) + s.adapterFLOPs(adapters)}
}

// learnerFLOPs returns the operations of the forward pass and of the gradients of inputs and weights. Weights under adapters have no
// gradient.
func learnerFLOPs(c arch.Config, s shape, adapters int64) measure.Amount {
	passes := 3.0
	if adapters > 0 {
		passes = 2
	}
	return measure.Amount{Formula: fmt.Sprintf("%g·(%s), prompts once%s", passes, forwardFormula, withAdapters(adapters, 3)),
		Value: passes*forwardFLOPs(c, s, s.sequences()*s.newTokens) + 3*s.adapterFLOPs(adapters)}
}

func withAdapters(adapters int64, products int) string {
	if adapters == 0 {
		return ""
	}
	return fmt.Sprintf(" + %d·adapters·tokens", 2*products)
}

func stepFLOPs(c arch.Config, s shape, adapters int64) measure.Amount {
	return measure.Amount{Formula: "rollout + learner", Value: rolloutFLOPs(c, s, adapters).Value + learnerFLOPs(c, s, adapters).Value}
}

func decodeBytes(c arch.Config, s shape, weight float64, _ int64) measure.Amount {
	return measure.Amount{Formula: fmt.Sprintf("%g·parameters·new tokens: every pass reads the weights, of experts those that a row chose", weight),
		Value: weight * (float64(c.Parameters()) - unreadWeights(c, s.sequences())) * float64(s.newTokens)}
}

// decodeFLOPs returns the operations of the passes after cached prompts, one a token except the first.
func decodeFLOPs(c arch.Config, s shape) measure.Amount {
	layers, head := matrices(c)
	passes := float64(s.newTokens - 1)
	attended := pairFLOPs(c) * (float64(s.promptTokens) + passes/2)
	return measure.Amount{Formula: "passes·rows·(2·matrices + 4·layers·width·context)", Value: passes * float64(s.sequences()) * (2*(layers+head) + attended)}
}

func noBytes(arch.Config, shape, float64, int64) measure.Amount {
	return measure.Amount{Formula: "0: bound by FLOPs"}
}

func stepBytes(c arch.Config, s shape, weight float64, adapters int64) measure.Amount {
	trained, what := c.Parameters(), "parameters"
	if adapters > 0 {
		trained, what = adapters, "adapters"
	}
	return measure.Amount{
		Formula: "rollout + 32·" + what + ": AdamW reads the gradient twice and moves weights and moments both ways",
		Value:   decodeBytes(c, s, weight, adapters).Value + 32*float64(trained),
	}
}
