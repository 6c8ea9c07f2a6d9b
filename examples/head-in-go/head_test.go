package main

import (
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// TestHeadLearns checks that the head learns rewards from bf16 hidden states, which agents on a
// GPU have, on the CPU and on a GPU if there is one.
func TestHeadLearns(t *testing.T) {
	for _, spec := range []string{"cpu", "cuda:0"} {
		t.Run(spec, func(t *testing.T) {
			device, err := torch.Open(spec, 1)
			if err != nil {
				t.Skip(err)
			}
			defer device.Close()
			err = device.Do(t.Context(), func(s *term.Scope) error { return learn(t, s) })
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func learn(t *testing.T, s *term.Scope) error {
	head := gotchx.NewTerm(&valueHead{rate: 0.1})
	b := term.Batch{
		Hidden:  s.FromFloat32([]float32{9, 9, 1, 0, 9, 9, 0, 1}, 4, 2).To(torch.BFloat16),
		LogProb: s.Zeros(torch.Float32, 4),
	}
	b.Sequences = []term.Sequence{{To: 2, Reward: 1}, {From: 2, To: 4, Reward: 0.25}}
	b.Minibatch.Sequences = 2
	first, last := 0.0, 0.0
	for i := range 100 {
		var err error
		s.Grad(true, func() {
			var loss *term.Tensor
			if loss, err = head.Loss(s, b); err != nil {
				return
			}
			if last = loss.Detach().Item(); i == 0 {
				first = last
			}
			torch.Backward([]*term.Tensor{loss}, []*term.Tensor{nil})
		})
		if err != nil {
			return err
		}
		if _, err := head.Updated(s, term.Update{}); err != nil {
			return err
		}
	}
	if want := (1 + 0.25*0.25) / 2; first != want || !(last < first/100) {
		t.Errorf("the loss went from %v, want %v, to %v", first, want, last)
	}
	return nil
}
