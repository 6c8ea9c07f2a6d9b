package archive

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// Usable returns the checkpoints from which a run can continue, the newest first. The observer receives a note for each
// checkpoint that cannot be used. It is an error if there are checkpoints but none of them can be used.
func (c Checkpoints) Usable(observer metrics.Observer) ([]Manifest, error) {
	steps, err := c.List()
	if err != nil {
		return nil, err
	}
	points, skipped, err := c.Offers()
	if err != nil {
		return nil, fmt.Errorf("--resume: %w", err)
	}
	for _, s := range skipped {
		observer.Note(metrics.Warnf("", metrics.TopicStart, "checkpoint of step %d cannot be used: %v", s.Step, s.Reason))
	}
	if len(points) == 0 && len(steps) > 0 {
		return nil, fmt.Errorf("--resume: none of the checkpoints of steps %v in %s is complete and undamaged; restore one, or choose another run.dir",
			steps, c.Dir)
	}
	return points, nil
}

// maxStates is the largest number of states that a worker offers. The store accepts only a few times as many.
const maxStates = 200

// StatesOf returns the states that a worker with these checkpoints can offer: the newest ones. A worker
// with a checkpoint of at most one step also offers to begin the run from the start, unless all workers had
// that checkpoint. The other workers may have been killed before they completed it. date is the run's date.
func StatesOf(points []Manifest, date string) []store.Offer {
	var out []store.Offer
	for _, m := range points[:min(len(points), maxStates)] {
		out = append(out, store.Offer{Version: m.Step, Digest: m.Digest, Date: date})
	}
	if len(points) == 0 || points[0].Step == points[len(points)-1].Step && !points[0].Agreed {
		out = append(out, store.Offer{Version: store.Afresh, Date: date})
	}
	return out
}
