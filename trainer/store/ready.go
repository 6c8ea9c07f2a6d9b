package store

import "context"

// Meet says that the member's worker is ready to begin, and waits until every agent's has been since the
// run was begun: one that takes a place over later meets nobody and goes on. At every look waiting is told
// who is not ready yet.
func (m *Member) Meet(ctx context.Context, waiting func(agents []string)) error {
	key := m.key("ready")
	if _, err := m.run(ctx, readyScript, "being ready", []string{m.key("events"), key}); err != nil {
		return err
	}
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
	}, func() ([]string, string) { return lacking(m.allAgents(), there), "being ready to begin" }, "ready")
}
