package learner

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/ranks"
)

// word is a rank's report to the others after a part of its work: its result, or the reason why it has none.
type word[T any] struct {
	Value           T
	Refused, Failed string
}

// Limits of a word in addition to its value: the reason, and the encoding.
const (
	mostReason   = 4 << 10
	mostEncoding = 16 << 10
)

// refusal is another rank's refusal of a batch, as a text.
type refusal string

func (r refusal) Error() string { return string(r) }

// agree returns every rank's value, by rank. If any rank has an error, all ranks return the same error: a failure takes
// precedence over a refusal, and a lower rank over a higher one. So all ranks continue in the same way, and no rank waits
// for one that has given up. A value has at most `most` bytes.
func agree[T any](ctx context.Context, g ranks.Group, mine T, err error, most int) ([]T, error) {
	said, unheard := tell(ctx, g, mine, err, most)
	if unheard != nil {
		g.GiveUp(unheard)
		if err != nil && !refused(err) {
			return nil, err // the cause of a failed exchange, if it is known
		}
		return nil, unheard
	}
	failed := slices.IndexFunc(said, func(w word[T]) bool { return w.Failed != "" })
	unwilling := slices.IndexFunc(said, func(w word[T]) bool { return w.Refused != "" })
	switch {
	case failed == g.Rank(), failed < 0 && unwilling == g.Rank():
		return nil, err
	case failed >= 0:
		return nil, fmt.Errorf("learner: rank %d: %s", failed, said[failed].Failed)
	case unwilling >= 0:
		return nil, refusal(said[unwilling].Refused)
	}
	values := make([]T, len(said))
	for r, w := range said {
		values[r] = w.Value
	}
	return values, nil
}

// together returns an error if any rank has one.
func (l *Learner) together(ctx context.Context, err error) error {
	_, err = agree(ctx, l.group, 0, err, 0)
	return err
}

// meet runs f, which calls the group, on the device. If f fails or cannot begin, this rank gives up the group, unless the
// error is a refusal, which all ranks share.
func (l *Learner) meet(ctx context.Context, f func(s *torch.Scope) error) error {
	return l.meetOn(ctx, l.model.Device, f)
}

// meetOn does the same as meet on a device that may belong to another model.
func (l *Learner) meetOn(ctx context.Context, device *torch.Device, f func(s *torch.Scope) error) error {
	err := device.Do(ctx, f)
	if err != nil && !refused(err) {
		l.group.GiveUp(err)
	}
	return err
}

// tell exchanges words.
func tell[T any](ctx context.Context, g ranks.Group, mine T, err error, most int) ([]word[T], error) {
	said := make([]word[T], g.Size())
	w := &said[g.Rank()]
	w.Value = mine
	switch {
	case refused(err):
		w.Refused = reason(err)
	case err != nil:
		w.Failed = reason(err)
	}
	var encoded bytes.Buffer
	if err := gob.NewEncoder(&encoded).Encode(w); err != nil {
		return nil, fmt.Errorf("learner: %w", err)
	}
	heard, err := g.Exchange(ctx, encoded.Bytes(), most+mostReason+mostEncoding)
	if err != nil {
		return nil, fmt.Errorf("learner: %w", err)
	}
	for r, b := range heard {
		if r == g.Rank() {
			continue
		}
		if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&said[r]); err != nil {
			return nil, fmt.Errorf("learner: the report of rank %d: %w", r, err)
		}
	}
	return said, nil
}

func reason(err error) string {
	text := err.Error()
	return text[:min(len(text), mostReason)]
}
