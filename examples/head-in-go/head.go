package main

import (
	"fmt"

	"github.com/sugarme/gotch"
	"github.com/sugarme/gotch/nn"
	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// valueHead is a linear layer that predicts the reward of a trajectory from its last hidden state. It learns with its own Adam from the
// trajectories that train the policy, and leaves the policy as it is.
type valueHead struct {
	rate float64

	weights *nn.VarStore // nil until the first micro-batch shows the size of hidden states
	layer   *nn.Linear
	adam    *nn.Optimizer

	mean   float64   // of the rewards of all earlier minibatches
	seen   int       // number of these rewards
	latest []float64 // rewards of the current minibatch
}

var _ gotchx.Term = (*valueHead)(nil)

// Loss returns this micro-batch's share of the head's squared error, the mean over the trajectories of the minibatch.
func (h *valueHead) Loss(b gotchx.TermBatch) (loss *ts.Tensor, err error) {
	if h.weights == nil {
		if err := h.open(b.Hidden); err != nil {
			return nil, err
		}
	}
	var last []int64
	var rewards []float32
	for _, q := range b.Sequences {
		last, rewards = append(last, int64(q.To)-1), append(rewards, float32(q.Reward))
		h.latest = append(h.latest, q.Reward)
	}
	device, err := b.Hidden.Device()
	if err != nil {
		return nil, err
	}
	index, err := onDevice(device, last)
	if err != nil {
		return nil, err
	}
	defer index.MustDrop()
	target, err := onDevice(device, rewards)
	if err != nil {
		return nil, err
	}
	defer target.MustDrop()
	hidden, err := b.Hidden.Detach(false) // without this line the policy learns to make rewards predictable, too
	if err != nil {
		return nil, err
	}
	if hidden, err = hidden.IndexSelect(0, index, true); err != nil {
		return nil, err
	}
	if hidden, err = hidden.Totype(gotch.Float, true); err != nil { // bf16 on GPUs
		return nil, err
	}
	defer hidden.MustDrop()
	value, err := h.layer.Forward(hidden).Squeeze(true)
	if err != nil {
		return nil, err
	}
	if loss, err = value.MseLoss(target, ts.ReductionSum, true); err != nil {
		return nil, err
	}
	return loss.DivScalar(ts.IntScalar(int64(b.Minibatch.Sequences)), true)
}

// onDevice returns a tensor of values on a device.
func onDevice(device gotch.Device, values any) (*ts.Tensor, error) {
	t, err := ts.OfSlice(values)
	if err != nil {
		return nil, err
	}
	return t.To(device, true)
}

// open makes the layer for hidden states of this size, with zeros.
func (h *valueHead) open(hidden *ts.Tensor) (err error) {
	shape, err := hidden.Size()
	if err != nil {
		return err
	}
	device, err := hidden.Device()
	if err != nil {
		return err
	}
	h.weights = nn.NewVarStore(device)
	zeros := &nn.LinearConfig{WsInit: nn.NewConstInit(0), BsInit: nn.NewConstInit(0), Bias: true}
	h.layer = nn.NewLinear(h.weights.Root().Sub("value"), shape[1], 1, zeros)
	h.adam, err = nn.DefaultAdamConfig().Build(h.weights, h.rate)
	return err
}

// Updated makes a step of Adam if the policy was updated, and drops the gradient. It reports as
// "mean" the squared error of predicting each reward by the mean of all earlier rewards. A useful head has a smaller error.
func (h *valueHead) Updated(u term.Update) (map[string]float64, error) {
	values := map[string]float64{}
	for _, reward := range h.latest {
		values["mean"] += (h.mean - reward) * (h.mean - reward) / float64(len(h.latest))
	}
	for _, reward := range h.latest {
		h.seen++
		h.mean += (reward - h.mean) / float64(h.seen)
	}
	h.latest = h.latest[:0]
	if u.Refused == nil {
		if err := h.adam.Step(); err != nil {
			return nil, err
		}
	}
	return values, h.adam.ZeroGrad()
}

// save writes the head's weights to a file that (*nn.VarStore).Load reads.
func (h *valueHead) save(path string) error {
	if h.weights == nil {
		return fmt.Errorf("the head has seen no trajectory")
	}
	return h.weights.Save(path)
}
