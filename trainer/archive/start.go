package archive

import (
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// AtHand are the checkpoints from which a run can go on, newest first, with what Offers passes over told to the
// observer. That there are some and none is whole is an error.
func (c Checkpoints) AtHand(observer metrics.Observer) ([]Manifest, error) {
	steps, err := c.List()
	if err != nil {
		return nil, err
	}
	points, skipped, err := c.Offers()
	if err != nil {
		return nil, fmt.Errorf("--resume: %w", err)
	}
	for _, s := range skipped {
		observer.Note(metrics.Warnf("", metrics.TopicStart, "checkpoint of step %d is passed over: %v", s.Step, s.Reason))
	}
	if len(points) == 0 && len(steps) > 0 {
		return nil, fmt.Errorf("--resume: none of the checkpoints of steps %v in %s is whole", steps, c.Dir)
	}
	return points, nil
}

// StatesOf are the states that a worker with these checkpoints can start from. One that has at most one may have
// to begin at the beginning: it may be the only one whose first checkpoint was completed. date is the run's.
func StatesOf(points []Manifest, date string) []store.Offer {
	var out []store.Offer
	for _, m := range points {
		out = append(out, store.Offer{Version: m.Step, Digest: m.Digest, Date: date})
	}
	if len(points) == 0 || points[0].Step == points[len(points)-1].Step {
		out = append(out, store.Offer{Version: store.Afresh, Date: date})
	}
	return out
}
