package learner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// minibatchTerm is the loss term of a program in one minibatch. nil: the program has none.
type minibatchTerm struct {
	term.Term
	minibatch term.Minibatch
	alone     bool    // no sequence has a gradient from the policy loss
	called    bool    // Loss was called
	loss      float64 // sum over micro-batches
}

// addTerm adds the program's term, if there is one, to a minibatch's loss. With a term,
// sequences of advantage 0 run backward, too, since the term may have a gradient for them.
func addTerm(added term.Term, updates int64, p *minibatchLoss) *minibatchTerm {
	if added == nil {
		return nil
	}
	t := &minibatchTerm{Term: added, alone: len(p.learning) == 0}
	p.learning, p.observed = byID(append(p.learning, p.observed...)), nil
	for _, q := range p.learning {
		t.minibatch.Step = q.Step
		t.minibatch.Tokens += len(q.trained())
	}
	t.minibatch.Update, t.minibatch.Sequences = updates, len(p.learning)
	return t
}

// lossOf returns the term's loss of a micro-batch and its gradient, 1, in lists as a model.LossFunc does. The lists are empty
// if there is no loss. rows are the hidden states of the trained tokens.
func (t *minibatchTerm) lossOf(s *torch.Scope, micro []*Sequence, rows, logp *torch.Tensor) (outputs, grads []*torch.Tensor, err error) {
	if t == nil {
		return nil, nil, nil
	}
	b := term.Batch{Hidden: rows, LogProb: logp, Composition: term.Composition{Minibatch: t.minibatch}}
	at := 0
	for _, q := range micro {
		from := at
		at += len(q.trained())
		b.Sequences = append(b.Sequences, term.Sequence{ID: q.ID, Trajectory: q.TrajectoryID, From: from, To: at, Group: q.Group,
			Reward: q.Reward, Advantage: q.Advantage, Weight: q.Weight})
	}
	t.called = true
	var loss *torch.Tensor
	failed := catchTorchError(func() { loss, err = t.Loss(s, b) }) // the caller adds that the error is the term's
	if err = cmp.Or(failed, err); err != nil || loss == nil {
		return nil, nil, err
	}
	if loss.Device() != s.Device() {
		return nil, nil, errors.New("returned a loss of another device, not of the agent's")
	}
	if kind := loss.DType(); kind != torch.Float32 && kind != torch.Float64 || loss.Numel() != 1 {
		return nil, nil, fmt.Errorf("returned %v %v, not a float32 or float64 scalar", kind, loss.Shape())
	}
	value := loss.Detach().Item()
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return nil, nil, &mgrpo.Refusal{Code: mgrpo.NonFiniteValue, Field: "term_loss", Message: fmt.Sprintf("the program's loss term is %v", value)}
	}
	if !torch.HasHistory(loss) {
		return nil, nil, errors.New("returned a loss without gradient history; return nil for 0")
	}
	t.loss += value
	return []*torch.Tensor{loss}, []*torch.Tensor{s.Full(loss.DType(), 1, loss.Shape()...)}, nil
}

// finish calls Updated, with err as the reason if there was no update, and adds the term's
// values to the report. It returns err, or the term's error.
func (t *minibatchTerm) finish(ctx context.Context, device *torch.Device, lr float64, r *Report, err error) error {
	if t == nil || !t.called {
		return err
	}
	failed := device.Do(context.WithoutCancel(ctx), func(s *torch.Scope) error {
		values, failed := t.Updated(s, term.Update{Minibatch: t.minibatch, LR: lr, Refused: err})
		if failed != nil || r.Values == nil {
			return failed
		}
		r.Values[metrics.TermLoss] = t.loss
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if err := checkValue(name, values[name]); err != nil {
				return err
			}
			r.Values[metrics.TermPrefix+name] = values[name]
		}
		return nil
	})
	if failed != nil {
		failed = fmt.Errorf("learner: the program's loss term: %w", failed)
	}
	if err != nil && !isRefusal(err) {
		return errors.Join(err, failed)
	}
	if failed != nil {
		return failed
	}
	return err
}

// valueName is the form of the names in docs/metrics.md, which are also those of Prometheus and of trackers.
var valueName = regexp.MustCompile(`^[a-z0-9_]+$`)

// checkValue refuses a value that a record cannot have: metrics.jsonl has no numbers that are not finite.
func checkValue(name string, v float64) error {
	switch {
	case !valueName.MatchString(name):
		return fmt.Errorf("returned a value named %q: names have lower-case letters, digits and underscores", name)
	case name == "loss":
		return errors.New("returned a value named loss, which is reserved for the term's own")
	case math.IsNaN(v) || math.IsInf(v, 0):
		return fmt.Errorf("the value %s is %v", name, v)
	}
	return nil
}

// leavesPolicyUnchanged reports whether an update has nothing to change: only the term could
// have a gradient for the policy's parameters, and it has none.
func (t *minibatchTerm) leavesPolicyUnchanged(ctx context.Context, l *Learner) (bool, error) {
	if t == nil || !t.alone {
		return false, nil
	}
	norm, err := l.grad.norm(ctx, l.State.division)
	return norm == 0 && err == nil, err
}
