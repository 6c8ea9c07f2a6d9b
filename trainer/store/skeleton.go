package store

// Exported API, being filled in (this file goes away).

import (
	"context"
	"errors"
	"time"
)

var errSkeleton = errors.New("store: not filled in yet")

// Options says which store to open and how long to wait.
type Options struct {
	Run           string // names the keys
	URL           string // "": an embedded store of this process, which Close ends
	Username      string
	Password      string
	CAFile        string
	CertFile      string
	KeyFile       string
	ServerName    string
	AllowInsecure bool
	AllowVolatile bool
	Lease         time.Duration // 0: 15 s
	Timeout       time.Duration // 0: 10 min: longest wait for another agent
}

type Store struct{}
type Member struct{ *Store }

func Open(ctx context.Context, o Options) (*Store, error) { return nil, errSkeleton }
func (s *Store) Close() error                             { return errSkeleton }
func (s *Store) Join(ctx context.Context, agent string, h Hello) (*Member, error) {
	return nil, errSkeleton
}

func (m *Member) Agent() string                   { return "" }
func (m *Member) Epoch() int64                    { return 0 }
func (m *Member) Context() context.Context        { return nil } // cancelled, with cause, when the run stops or fails or the member is fenced out
func (m *Member) Leave(ctx context.Context) error { return errSkeleton }

func (m *Member) Submit(ctx context.Context, v Invocation) error { return errSkeleton }
func (s *Store) Await(ctx context.Context, v Invocation) (Result, error) {
	return Result{}, errSkeleton
}
func (m *Member) Claim(ctx context.Context, p Phase) (Invocation, error) {
	return Invocation{}, errSkeleton
}                                                                            // ErrEnded once the phase has ended
func (m *Member) Complete(ctx context.Context, v Invocation, r Result) error { return errSkeleton }

func (m *Member) Begin(ctx context.Context, p Phase, plan Plan) error { return errSkeleton }
func (s *Store) Plan(ctx context.Context, p Phase) (Plan, error)      { return Plan{}, errSkeleton } // waits
func (m *Member) End(ctx context.Context, p Phase) error              { return errSkeleton }         // all rollouts have ended

func (m *Member) PublishOutcome(ctx context.Context, p Phase, o Outcome) error { return errSkeleton }
func (s *Store) Outcomes(ctx context.Context, p Phase, n int) ([]Outcome, error) {
	return nil, errSkeleton
}
func (m *Member) PublishHolding(ctx context.Context, p Phase, ids []string) error { return errSkeleton }
func (s *Store) Holdings(ctx context.Context, p Phase) (map[string][]string, error) {
	return nil, errSkeleton
}
func (m *Member) PublishVersion(ctx context.Context, version int64, stats map[string]float64) error {
	return errSkeleton
}
func (s *Store) Barrier(ctx context.Context, version int64) error { return errSkeleton }
func (s *Store) Statistics(ctx context.Context, version int64) (map[string]map[string]float64, error) {
	return nil, errSkeleton
}
func (m *Member) Fail(ctx context.Context, reason string) error { return errSkeleton }
func (m *Member) Stop(ctx context.Context, reason string) error { return errSkeleton }
func (m *Member) Trim(ctx context.Context, upto int64) error    { return errSkeleton }

var ErrEnded = errors.New("store: the phase has ended")
