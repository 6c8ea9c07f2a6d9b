package gotchx

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/sugarme/gotch"
	"github.com/sugarme/gotch/nn"
	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// valueHead predicts rewards from hidden states by a linear layer.
type valueHead struct {
	vs      *nn.VarStore
	value   *nn.Linear
	adam    *nn.Optimizer
	refused int
}

func (h *valueHead) Loss(b TermBatch) (loss *ts.Tensor, err error) {
	if h.vs == nil {
		h.vs = nn.NewVarStore(gotch.CPU)
		h.value = nn.NewLinear(h.vs.Root(), b.Hidden.MustSize()[1], 1, nn.DefaultLinearConfig())
		if h.adam, err = nn.DefaultAdamConfig().Build(h.vs, 0.05); err != nil {
			return nil, err
		}
	}
	var rewards []float32
	for _, q := range b.Sequences {
		for range q.To - q.From {
			rewards = append(rewards, float32(q.Reward))
		}
	}
	target, err := ts.OfSlice(rewards)
	if err != nil {
		return nil, err
	}
	off := h.value.Forward(b.Hidden).MustSqueeze(true).MustSub(target, true)
	return off.MustSquare(true).MustMean(gotch.Float, true), nil
}

func (h *valueHead) Updated(u term.Update) (map[string]float64, error) {
	if u.Refused != nil {
		h.refused++
		return nil, h.adam.ZeroGrad()
	}
	return map[string]float64{"steps": float64(h.adam.StepCount())}, errors.Join(h.adam.Step(), h.adam.ZeroGrad())
}

// TestTerm: a head's gradient by the hidden states is the analytic one, and its optimizer learns.
func TestTerm(t *testing.T) {
	do(t, func(s *torch.Scope) {
		head := &valueHead{}
		var added term.Term = NewTerm(head)
		hidden, logp := s.FromFloat32([]float32{0.5, -1, 2, 0.25, 1, 0, -0.5, 3}, 4, 2), s.FromFloat32([]float32{-1, -2, -3, -4}, 4)
		hidden.RequireGrad(true)
		b := term.Batch{Hidden: hidden, LogProb: logp, Composition: term.Composition{Sequences: []term.Sequence{{To: 3, Reward: 1}, {From: 3, To: 4, Reward: 0.25}}}}
		first, last := 0.0, 0.0
		for i := range 100 {
			s.Grad(true, func() {
				loss, err := added.Loss(s, b)
				if err != nil {
					t.Fatal(err)
				}
				if last = loss.Detach().Item(); i == 0 {
					first = last
				}
				torch.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil})
			})
			if i == 0 {
				checkGradient(t, head, hidden)
			}
			if _, err := added.Updated(s, term.Update{}); err != nil {
				t.Fatal(err)
			}
		}
		if !(last < first/10) {
			t.Errorf("the loss went from %v to %v", first, last)
		}
		if _, err := added.Updated(s, term.Update{Refused: errors.New("no")}); err != nil || head.refused != 1 {
			t.Errorf("%d refusals, %v", head.refused, err)
		}
	})
}

// checkGradient compares the gradient of the first loss by the hidden states with 2/N · (value - reward) · w.
func checkGradient(t *testing.T, h *valueHead, hidden *torch.Tensor) {
	t.Helper()
	w, bias := h.value.Ws.MustDetach(false).Float64Values(), h.value.Bs.Float64Values()[0]
	values, got := make([]float32, 8), make([]float32, 8)
	hidden.Detach().Float32s(values)
	hidden.Grad().Float32s(got)
	for i, reward := range []float64{1, 1, 1, 0.25} {
		off := w[0]*float64(values[2*i]) + w[1]*float64(values[2*i+1]) + bias - reward
		for j := range 2 {
			if want := 2.0 / 4 * off * w[j]; math.Abs(float64(got[2*i+j])-want) > 1e-5 {
				t.Errorf("gradient of row %d is %v, want %v", i, got[2*i+j], want)
			}
		}
	}
}

// funcs is a term of a function.
type funcs func(b TermBatch) (*ts.Tensor, error)

func (f funcs) Loss(b TermBatch) (*ts.Tensor, error)            { return f(b) }
func (f funcs) Updated(term.Update) (map[string]float64, error) { return nil, nil }

func TestTermErrors(t *testing.T) {
	do(t, func(s *torch.Scope) {
		b := term.Batch{Hidden: s.Zeros(torch.Float32, 2, 2), LogProb: s.Zeros(torch.Float32, 2)}
		if loss, err := NewTerm(funcs(func(TermBatch) (*ts.Tensor, error) { return nil, nil })).Loss(s, b); loss != nil || err != nil {
			t.Errorf("no loss: %v, %v", loss, err)
		}
		broken := errors.New("broken")
		if _, err := NewTerm(funcs(func(TermBatch) (*ts.Tensor, error) { return nil, broken })).Loss(s, b); !errors.Is(err, broken) {
			t.Error(err)
		}
		if _, err := NewTerm(funcs(func(b TermBatch) (*ts.Tensor, error) { return b.LogProb, nil })).Loss(s, b); err == nil || !strings.Contains(err.Error(), "one of its inputs") {
			t.Error(err)
		}
	})
}

// TestNewTermOfNil: a missing term stays nil, so that the training can refuse it by the agent's name.
func TestNewTermOfNil(t *testing.T) {
	for name, missing := range map[string]Term{"nil": nil, "nil pointer": (*valueHead)(nil)} {
		if got := NewTerm(missing); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestTermOfAnotherDevice: a loss on the CPU is refused on a GPU.
func TestTermOfAnotherDevice(t *testing.T) {
	gpu, err := torch.Open("cuda:0", 1)
	if err != nil {
		t.Skip(err)
	}
	defer gpu.Close()
	err = gpu.Do(t.Context(), func(s *torch.Scope) error {
		b := term.Batch{Hidden: s.Zeros(torch.Float32, 2, 2), LogProb: s.Zeros(torch.Float32, 2)}
		_, err := NewTerm(funcs(func(TermBatch) (*ts.Tensor, error) { return ts.OfSlice([]float32{1}) })).Loss(s, b)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "returned a loss on CPU, not on the device of TermBatch.Hidden") {
		t.Error(err)
	}
}
