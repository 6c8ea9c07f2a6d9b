package roofline

import (
	"math"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Part is a part of a step.
type Part struct {
	Name string
	Time
}

// Step is the least time of an agent's step on a device, part by part in order.
type Step struct {
	Agent Agent
	Work  Work
	Parts []Part
}

// Names of parts.
const (
	Prompts    = "prompts"    // of conversations, and results: rows that generation computes together
	Decoding   = "decoding"   // a row of each conversation that samples, and its sampling
	Learning   = "learning"   // forward and backward passes
	Optimizer  = "optimizer"  // gradients to weights
	Exchange   = "exchange"   // of gradients and weights between the agent's processes
	Publishing = "publishing" // weights to servers; our own engine reads the weights that the optimizer writes
)

// Of returns the time of a part.
func (s Step) Of(name string) (t Time) {
	for _, p := range s.Parts {
		if p.Name == name {
			t = p.Time
		}
	}
	return t
}

// Total returns the time of all parts, one after another.
func (s Step) Total() (t Time) {
	for _, p := range s.Parts {
		t.add(p.Time, 1)
	}
	return t
}

// Floor returns the least time of a step with work w, on the agent's device with the most processes.
func Floor(d Device, a Agent, w Work) Step {
	a.layers = leavesOf(a.Arch)
	s := Step{Agent: a, Work: w}
	w = w.share(a.busiest(), a.ranks())
	part := func(name string, t Time) { s.Parts = append(s.Parts, Part{name, t}) }
	part(Prompts, prompts(d, a, w))
	part(Decoding, decoding(d, a, w))
	if a.Trained > 0 {
		part(Learning, learning(d, a, w))
		part(Optimizer, optimizer(d, a))
		part(Exchange, exchange(d, a, w))
		part(Publishing, publishing(d, a))
	}
	return s
}

// prompts returns the time of prompts and results, in passes with as many rows as the engine allows. The host launches each kernel.
func prompts(d Device, a Agent, w Work) (t Time) {
	r := w.prompts(d.GPU)
	if r.n == 0 {
		return t
	}
	p := pass{d: d, a: a, rows: r, passes: math.Ceil(r.n / float64(arch.PassRows(d.GPU))), rate: a.generation(d, false), weight: a.Weight, cached: d.Read,
		eager: d.Eager}
	one := p.layers().all()
	p.head(&one, float64(w.Prompts+w.Prompts*w.Rollouts*(w.Turns-1))/p.passes) // of the last rows before a turn
	t.add(one, p.passes)
	return t
}

// decoding returns the time of decoding. It uses all slots while there are conversations for them. Each process on a device makes its
// own passes.
func decoding(d Device, a Agent, w Work) (t Time) {
	r := w.decoded()
	if r.n == 0 {
		return t
	}
	engines := float64(a.busiest())
	waves := math.Ceil(w.Sequences() / engines / float64(a.Slots))
	p := pass{d: d, a: a, rows: r, passes: engines * waves * float64(w.Turns*(w.Sampled-1)), rate: a.generation(d, true), weight: a.Weight, cached: d.Cached}
	one := p.layers().all()
	p.head(&one, p.n())
	one.work(p.launch(1), 4*p.n()*float64(a.Arch.VocabSize), d.Read, 0, 1) // a draw reads the logits
	t.add(one, p.passes)
	return t
}

// learning returns the time of the epochs' forward and backward passes, and of the passes without gradients before them.
func learning(d Device, a Agent, w Work) (t Time) {
	r := w.trained()
	batches := a.batches(r)
	p := pass{d: d, a: a, rows: r, passes: batches, rate: a.training(d), weight: a.value(), cached: d.Read, eager: d.Eager, trains: true}
	layers, trained := p.layers(), w.SampledTokens()/batches

	observed := layers.all()
	p.head(&observed, trained)
	t.add(observed, batches*float64(a.Observed))

	// Backward: the gradients of inputs and of weights are products as large as the forward pass's. Weights under adapters have no
	// gradient. The rest is at least twice the forward pass's: attention takes five products for two (FlashAttention, Dao et al. 2022).
	both, passes := layers.all(), 2.0
	if a.Adapts {
		passes = 1
	}
	both.add(layers.products, passes)
	both.add(layers.rest, 2)
	if a.Checkpoint {
		both.add(layers.all(), 1)
	}
	for range int(1 + passes) {
		p.head(&both, trained)
	}
	both.work(p.launch(1), 8*trained*float64(a.Arch.VocabSize), d.Copy, 0, 1) // logits become gradients, in place
	both.work(0, 8*float64(a.Trained), d.Copy, 0, 1)                          // gradients of weights are added up in fp32
	t.add(both, batches*float64(a.Epochs))
	return t
}

// batches returns the number of micro-batches for these rows.
func (a Agent) batches(r rows) float64 { return math.Max(1, math.Ceil(r.n/float64(a.MicroBatch))) }

// exchange returns the time to send gradients and weights to the other processes and to receive theirs. A bf16 gradient is sent with
// each micro-batch, because a process keeps only the sum of its own share.
func exchange(d Device, a Agent, w Work) (t Time) {
	updates := float64(a.Updates)
	gradient, weights := 4*updates, 4*updates
	switch {
	case a.Half && !a.Adapts:
		gradient, weights = 2*a.batches(w.trained())*float64(a.Epochs), 2*updates
	case a.Weight == 2 && !a.Adapts:
		weights += 2 * updates
	}
	others := float64(a.Trained) * float64(a.ranks()-1) / float64(a.ranks())
	t.work(0, 2*(gradient+weights)*others, d.Link, 0, 1)
	return t
}

// optimizer returns the time to zero the gradient, compute its norm, and update moments, weights, and the copy that generation reads.
func optimizer(d Device, a Agent) (t Time) {
	bytes := 4 + 4 + 4 + 24.0 // zeroes; the norm; the gradient; weights and two moments, both ways
	if a.Weight == 2 && !a.Adapts {
		bytes += 2
	}
	const kernels = 3
	t.work(float64(a.Updates*kernels)*d.Launch, float64(a.Updates)*bytes*float64(a.Trained)*float64(a.busiest())/float64(a.ranks()), d.Copy, 0, 1)
	return t
}

// publishing returns the time to copy bf16 weights to the host and back, if servers sample.
func publishing(d Device, a Agent) (t Time) {
	if a.Remote {
		t.work(0, 2*2*float64(a.Arch.Parameters()), d.Link, 0, 1)
	}
	return t
}
