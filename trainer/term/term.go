// Package term is the interface of a loss term that a program adds to the policy loss of an
// agent. The term may be a regulariser, or a value or reward head with its own optimizer.
// Programs write terms with gotch (bindings/torch/gotchx), or with Tensor and Scope, so that training itself does not link
// gotch.
package term

import "github.com/mgrpo/mgrpo/bindings/torch"

// Tensor is a tensor of LibTorch. A term without gotch computes with its methods, such as Mul, Sum and Scale.
type Tensor = torch.Tensor

// Scope makes tensors on the agent's device, and frees them at the end of the call unless they are kept. A term without gotch uses its
// methods, such as FromFloat32 and Keep.
type Scope = torch.Scope

// Term is a loss term of one agent. Its methods are called on the thread of the agent's device, and never concurrently.
type Term interface {
	// Loss returns the term's share of one micro-batch: a float32 or float64 scalar with gradient history, which is added to the policy
	// loss, or nil for 0. Its gradient reaches the policy's parameters through Hidden and LogProb, unless the term detaches them, and
	// also parameters of the term's own. The loss of a minibatch is the sum over its micro-batches, so divide by a number in Minibatch
	// for a mean. A value that is not finite refuses the update; an error ends the run. Gradients are recorded during the call.
	Loss(s *Scope, b Batch) (*Tensor, error)

	// Updated is called after an update with at least one call of Loss. The term makes a step of its own
	// optimizer or, if the update was not made, drops the gradients of its parameters. The step's record gets
	// the returned values as term_NAME. A NAME has lower-case letters, digits and underscores; the name loss is
	// reserved. An error or a value that is not finite ends the run. Gradients are not recorded during the call.
	Updated(s *Scope, u Update) (map[string]float64, error)
}

// Batch is one micro-batch: N trained tokens of some sequences, one after the other. A token that several
// sequences share is computed once and occurs in each of them. Both tensors have gradient history. Hidden
// has the agent's compute type: float32 on a CPU and bf16 on a GPU, unless agents.NAME.dtype is set.
type Batch struct {
	Hidden  *Tensor // [N, Hidden]: last hidden state, after the norm, that predicts the token
	LogProb *Tensor // float32 [N]: log-prob of the token under grpo.temperature
	Composition
}

// Composition lists the sequences of a micro-batch and describes its minibatch.
type Composition struct {
	Sequences []Sequence
	Minibatch Minibatch
}

// Sequence is a trajectory of the micro-batch, or one row of it (docs/architecture.md). Its tokens are rows From to To-1.
type Sequence struct {
	ID         string
	Trajectory string // equal for the rows of a trajectory
	From, To   int
	Group      int64   // trajectories with the same number were compared with each other
	Reward     float64 // the trajectory's reward before normalisation: scores of verifiers or judges, weighted by `reward`
	Advantage  float64
	Weight     float64 // alignment weight: how often the trajectory counts
}

// Minibatch describes the minibatch of an update.
type Minibatch struct {
	Step      int64 // training step, from 0: the version of the weights before it
	Update    int64 // updates made before this one, since training began
	Sequences int   // in all micro-batches together
	Tokens    int   // N of all micro-batches together
}

// Update describes the end of an update.
type Update struct {
	Minibatch Minibatch
	LR        float64 // learning rate of the policy
	Refused   error   // the reason why the policy was not updated; nil: it was updated, or its gradient was 0
}
