package gotchx

import (
	"fmt"
	"reflect"

	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// Term is a loss term written with gotch: term.Term with gotch's tensors. Its methods are called on the thread of
// the agent's device, one at a time. Make modules and their optimizer in the first call of Loss, where gradients are
// recorded, and on the device of TermBatch.Hidden. Return gotch's errors: its functions whose names begin with Must
// end the process. A tensor of gotch keeps its memory, and the graph behind it, until it is dropped or collected.
type Term interface {
	// Loss returns the term's share of one micro-batch, a scalar, or nil for 0; term.Term describes it. The caller drops the result.
	Loss(b TermBatch) (*ts.Tensor, error)

	// Updated is called after the update: step the optimizer or, after a refusal, drop the gradients. The values are reported as term_NAME.
	Updated(u term.Update) (map[string]float64, error)
}

// TermBatch is one micro-batch: term.Batch with gotch's tensors, which are dropped when Loss returns. Both tensors have gradient history.
type TermBatch struct {
	Hidden  *ts.Tensor // [N, Hidden]; float32 on a CPU and bf16 on a GPU, unless agents.NAME.dtype is set
	LogProb *ts.Tensor // float32 [N]
	term.Composition
}

// NewTerm returns t for trainer.TrainOptions.Terms, or nil if t is nil or a nil pointer: training refuses a nil term.
func NewTerm(t Term) term.Term {
	if v := reflect.ValueOf(t); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	return gotchTerm{t}
}

type gotchTerm struct{ Term }

// Loss converts the tensors of a micro-batch and of the result.
func (g gotchTerm) Loss(s *torch.Scope, b term.Batch) (*torch.Tensor, error) {
	batch := TermBatch{Hidden: toGotch(b.Hidden), LogProb: toGotch(b.LogProb), Composition: b.Composition}
	defer batch.Hidden.MustDrop()
	defer batch.LogProb.MustDrop()
	loss, err := g.Term.Loss(batch)
	if err != nil || loss == nil {
		return nil, err
	}
	if loss == batch.Hidden || loss == batch.LogProb {
		return nil, fmt.Errorf("gotchx: the term returned one of its inputs, not a loss")
	}
	defer loss.MustDrop()
	device, err := loss.Device()
	if err != nil {
		return nil, err
	}
	if device.CInt() != toDevice(s.Device()).CInt() {
		return nil, fmt.Errorf("gotchx: the term returned a loss on %s, not on the device of TermBatch.Hidden", device.Name)
	}
	return fromGotch(s, loss), nil
}

// Updated passes the call on.
func (g gotchTerm) Updated(_ *torch.Scope, u term.Update) (map[string]float64, error) {
	return g.Term.Updated(u)
}
