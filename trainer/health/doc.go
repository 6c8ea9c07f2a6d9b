// Package health lets other programs look at a process that trains: whether it lives, whether its workers
// are ready, and its newest numbers, over HTTP.
//
//	GET /healthz   200 while the process answers and no device of its workers is lost. A device that is
//	               busy is not lost, and a run that waits is not dead: what takes too long ends by the
//	               deadlines of the run, not by a probe.
//	GET /readyz    200 when every agent of the process has its model loaded and its place in the run, and
//	               the store answers. It says what is missing otherwise.
//	GET /metrics   Prometheus text: the newest value of everything docs/metrics.md lists, and where the
//	               run stands.
//
// A failed check is a 503. The address is one of this machine's own, or every request must carry a token;
// HTTP is not encrypted, so between machines that do not trust their network it belongs behind a proxy.
package health

import (
	"context"
	"time"
)

// The paths that a Server answers.
const (
	AlivePath   = "/healthz"
	ReadyPath   = "/readyz"
	MetricsPath = "/metrics"
)

// MinToken is the fewest bytes of a token: shorter ones are guessed.
const MinToken = 16

// Options of a Server.
type Options struct {
	Address string   // HOST:PORT to listen at; port 0 takes a free one
	Token   string   // what requests carry as "Authorization: Bearer TOKEN"; "": nothing, on a loopback address only
	Agents  []string // that this process runs
	Saved   Saved    // nil: no checkpoints to tell of
}

// Saved finds the newest complete checkpoint: the training steps it holds and when it was written. ok is
// false where there is none.
type Saved func() (step int64, at time.Time, ok bool)

// Machine is a worker's model on its device.
type Machine interface {
	// Alive has the device's thread do nothing. It returns ctx's error where the thread is busy until ctx
	// ends, and another one where the device is lost.
	Alive(ctx context.Context) error
	// Version of the weights: the training steps they have seen.
	Version() int64
	// Rollouts are the conversations that the agent holds at this moment.
	Rollouts() int
}

// Place is an agent's place in a run: a *store.Member.
type Place interface {
	// Context ends when the place is lost or given up.
	Context() context.Context
	// Epoch counts the workers that have had the place.
	Epoch() int64
	// Ping waits for an answer of the store.
	Ping(ctx context.Context) error
}
