package store

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/internal/failpoint"
)

// Point is a barrier: a moment at which all workers of a round wait for each other.
type Point string

// The workers wait for each other when they are ready to begin the round, and when they have finished the run.
const (
	Ready    Point = "ready"
	Finished Point = "finished"
)

// Barrier publishes that the member's worker has reached a point, and waits until the workers of all agents have. A worker
// that takes over a place later finds the points of the round in the store. After every read, waiting is called with the
// agents that are missing. The wait ends with the member's place.
func (m *Member) Barrier(ctx context.Context, p Point, waiting func(agents []string)) error {
	ctx, cancel := WithPlace(ctx, m)
	defer cancel()
	failpoint.Here("meet", string(p), "before")
	what := "being " + string(p)
	_, err := m.write(ctx, barrierScript, what, values{"events": m.key("events"), "met": m.key("met", string(p)), "topic": "met/" + string(p)})
	if err != nil {
		return err
	}
	failpoint.Here("meet", string(p), "after")
	_, err = gather(ctx, m.Store, what, func(_, epoch string) (string, error) { return epoch, nil }, waiting, "met", string(p))
	return err
}

// ConfirmPlace returns a FencedError if the place no longer belongs to this member. A worker that was suspended detects
// this before it touches files that its successor may use.
func (m *Member) ConfirmPlace(ctx context.Context) error {
	_, err := m.write(ctx, placeScript, "the place of "+m.agent, values{})
	return err
}

// Missing lists the agents without a live worker.
func (s *Store) Missing(ctx context.Context) (missing []string, err error) {
	err = s.retry(ctx, "who is alive", func(ctx context.Context) error {
		missing = nil
		for _, a := range s.allAgents() {
			n, err := s.rdb.Exists(ctx, s.key("lease", a)).Result()
			if err != nil {
				return err
			}
			if n == 0 {
				missing = append(missing, a)
			}
		}
		return nil
	})
	return missing, err
}
