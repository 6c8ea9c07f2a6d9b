package store

import (
	"context"

	"github.com/mgrpo/mgrpo/trainer/failpoint"
)

// Point is where all workers of a round wait for each other.
type Point string

// Ready to begin, and finished with the run.
const (
	Ready    Point = "ready"
	Finished Point = "finished"
)

// Meet says that the member's worker has come to a point, and waits until every agent's has: one that takes a
// place over later finds them there. At every look waiting is told who is not there yet.
func (m *Member) Meet(ctx context.Context, p Point, waiting func(agents []string)) error {
	failpoint.Here("meet", string(p), "before")
	key := m.key("met", string(p))
	if _, err := m.write(ctx, metScript, "being "+string(p), []string{m.key("events"), key}, "met/"+string(p)); err != nil {
		return err
	}
	failpoint.Here("meet", string(p), "after")
	there := map[string]string{}
	return m.wait(ctx, func(ctx context.Context) (bool, error) {
		var err error
		if there, err = m.rdb.HGetAll(ctx, key).Result(); err != nil {
			return false, err
		}
		late := lacking(m.allAgents(), there)
		if len(late) > 0 {
			waiting(late)
		}
		return len(late) == 0, nil
	}, func() ([]string, string) { return lacking(m.allAgents(), there), "being " + string(p) }, "met/"+string(p))
}

// ConfirmPlace is a FencedError where the place is no longer this member's: a worker that was asleep finds out
// before it touches what its successor may have in use.
func (m *Member) ConfirmPlace(ctx context.Context) error {
	_, err := m.write(ctx, placeScript, "the place of "+m.agent, nil)
	return err
}

// Missing lists those of the agents of which no worker is alive.
func (s *Store) Missing(ctx context.Context) (missing []string, err error) {
	err = s.retry(ctx, "the store", "who is alive", func(ctx context.Context) error {
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

// Over says whether the workers of all these agents were finished with the run as it was left.
func (s *Store) Over(ctx context.Context, agents []string) (over bool, err error) {
	err = s.retry(ctx, "the store", "who is finished", func(ctx context.Context) error {
		there, err := s.rdb.HGetAll(ctx, s.key("met", string(Finished))).Result()
		over = len(lacking(agents, there)) == 0
		return err
	})
	return over, err
}
