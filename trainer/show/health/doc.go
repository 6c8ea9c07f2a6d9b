// Package health answers requests over HTTP about a training process: whether it is alive,
// whether its workers are ready, and its newest numbers.
//
//	GET /healthz   200 while the process answers and no device of its workers has failed. A busy device has
//	               not failed, and a run that waits is not dead: the run's own deadlines end operations
//	               that take too long.
//	GET /readyz    200 when every agent of the process has loaded its model and has its place in the run, and
//	               the store answers. Otherwise the answer lists what is missing.
//	GET /metrics   Prometheus text: the newest value of every metric in docs/metrics.md, and the state of
//	               the run.
//
// A failed check is a 503. The server listens on a loopback address, or every request for these paths must carry a token.
// Without Options.TLS the answers are not encrypted.
//
// It is the only HTTP server of the process: other packages mount their handlers on it with Handle.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package health

import (
	"context"
	"crypto/tls"
	"time"
)

// The paths of a Server.
const (
	AlivePath   = "/healthz"
	ReadyPath   = "/readyz"
	MetricsPath = "/metrics"
)

// MinToken is the smallest number of bytes of a token. Shorter tokens can be guessed.
const MinToken = 16

// Options are the settings of a Server.
type Options struct {
	Address string      // HOST:PORT to listen on; port 0 means any free port
	Token   string      // requests must have "Authorization: Bearer TOKEN"; "": no token, only on a loopback address
	TLS     *tls.Config // with the server's certificate; nil: plain HTTP
	Agents  []string    // agents of this process

	// Newest finds the newest complete checkpoint: the number of its training steps, and when it was written. ok is false
	// if there is no checkpoint. nil: no metrics of checkpoints.
	Newest func() (step int64, at time.Time, ok bool)
}

// Probe gives the server access to the model of a worker on its device.
type Probe interface {
	// Alive runs an empty function on the device's thread. It returns ctx's error if the thread is busy until ctx ends,
	// and another error if the device has failed.
	Alive(ctx context.Context) error
	// Version returns the number of training steps of the weights.
	Version() int64
	// Rollouts returns the number of conversations that the agent has in flight.
	Rollouts() int
}

// Place is an agent's place in a run: a *store.Member.
type Place interface {
	// Context returns a context that ends when another worker takes the place or the worker leaves.
	Context() context.Context
	// Epoch returns the fencing number of the place, which rises with each new worker and with each new round.
	Epoch() int64
	// Ping waits until the store answers.
	Ping(ctx context.Context) error
}
