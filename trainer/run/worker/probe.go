package worker

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
)

// Probe gives the health server and the live page access to a worker.
type Probe struct{ parts *assemble.Parts }

// ProbeOf returns the probe of a worker.
func ProbeOf(w *Worker) Probe { return Probe{w.parts} }

// Alive waits until the device's thread has executed an empty job, or until ctx ends. A hosted model has no device that
// could hang.
func (p Probe) Alive(ctx context.Context) error {
	if p.parts.Device == nil {
		return nil
	}
	return p.parts.Device.Do(ctx, func(*torch.Scope) error { return nil })
}

// Version returns the number of training steps of the weights.
func (p Probe) Version() int64 { return p.parts.Policy.Version() }

// Rollouts returns the number of open conversations.
func (p Probe) Rollouts() int { return p.parts.Player.InFlight() }

// Question returns a query's text and its reference answer, or "" if the task does not have the id.
func (p Probe) Question(id string) (text, answer string) {
	q, err := p.parts.Player.Task.Lookup(id)
	if err != nil {
		return "", ""
	}
	return q.Text, q.Answer
}
