package learner

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// status is a rank's report to the others after a part of its work: its result, or the reason why it has none.
type status[T any] struct {
	Value           T
	Refused, Failed string
}

// Limits of a status in addition to its value: the reason, and the encoding.
const (
	maxReason   = 4 << 10
	maxEncoding = 16 << 10
)

// refusal is another rank's refusal of a batch, as a text.
type refusal string

func (r refusal) Error() string { return string(r) }

// group is the ranks that train together.
type group struct{ ranks.Group }

// together returns an error if any rank has one.
func (g group) together(ctx context.Context, err error) error {
	_, err = agree(ctx, g, 0, err, 0)
	return err
}

// run runs f, which makes exchanges in the group, on a device. If f fails or cannot begin, this rank aborts the group,
// unless the error is a refusal, which all ranks share.
func (g group) run(ctx context.Context, device *torch.Device, f func(s *torch.Scope) error) error {
	err := device.Do(ctx, f)
	if err != nil && !isRefusal(err) {
		g.Abort(err)
	}
	return err
}

// complete gathers the weights that every pass reads, for a model that no rank has completely.
func (g group) complete(ctx context.Context, m *model.Model) error {
	if !m.Gathered() {
		return nil
	}
	return g.run(ctx, m.Device, func(*torch.Scope) error { return g.gatherRest(ctx, m) })
}

// gatherRest gathers the weights outside of layers, for a model that no rank has completely.
func (g group) gatherRest(ctx context.Context, m *model.Model) error {
	return m.Gather(0, func(block *torch.Tensor) error { return g.AllGather(ctx, block) })
}

// agree returns every rank's value, by rank. If any rank has an error, the lowest failed rank decides, or else the lowest refusing
// one. It returns its error; the others return that error's text. So all ranks continue in the same way, and no rank waits for one
// that has aborted the group. A value has at most `most` bytes.
func agree[T any](ctx context.Context, g ranks.Group, mine T, err error, most int) ([]T, error) {
	statuses, lost := exchangeStatus(ctx, g, mine, err, most)
	if lost != nil {
		g.Abort(lost)
		if err != nil && !isRefusal(err) {
			return nil, err // the cause of a failed exchange, if it is known
		}
		return nil, lost
	}
	failed := slices.IndexFunc(statuses, func(s status[T]) bool { return s.Failed != "" })
	refusing := slices.IndexFunc(statuses, func(s status[T]) bool { return s.Refused != "" })
	switch {
	case failed == g.Rank(), failed < 0 && refusing == g.Rank():
		return nil, err
	case failed >= 0:
		return nil, fmt.Errorf("learner: rank %d: %s", failed, statuses[failed].Failed)
	case refusing >= 0:
		return nil, refusal(statuses[refusing].Refused)
	}
	values := make([]T, len(statuses))
	for r, s := range statuses {
		values[r] = s.Value
	}
	return values, nil
}

// exchangeStatus exchanges the ranks' statuses. It returns them by rank.
func exchangeStatus[T any](ctx context.Context, g ranks.Group, mine T, err error, most int) ([]status[T], error) {
	statuses := make([]status[T], g.Size())
	own := &statuses[g.Rank()]
	own.Value = mine
	switch {
	case isRefusal(err):
		own.Refused = reason(err)
	case err != nil:
		own.Failed = reason(err)
	}
	var encoded bytes.Buffer
	if err := gob.NewEncoder(&encoded).Encode(own); err != nil {
		return nil, fmt.Errorf("learner: %w", err)
	}
	received, err := g.Exchange(ctx, encoded.Bytes(), most+maxReason+maxEncoding)
	if err != nil {
		return nil, fmt.Errorf("learner: %w", err)
	}
	for r, b := range received {
		if r == g.Rank() {
			continue
		}
		if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&statuses[r]); err != nil {
			return nil, fmt.Errorf("learner: the report of rank %d: %w", r, err)
		}
	}
	return statuses, nil
}

func reason(err error) string {
	text := err.Error()
	return text[:min(len(text), maxReason)]
}
