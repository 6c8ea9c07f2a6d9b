package learner

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
)

// A backward pass takes about as long as two forward passes.
const (
	forwardOnly        = 1
	forwardAndBackward = 3
)

// divideAmongRanks divides the sequences of a batch among ranks. Sequences of one group often begin alike, so a group of at most
// `whole` rows stays together; larger groups are cut as in microBatches. The longest are assigned first, each to the rank
// with the least load so far, or to the first such rank. A row adds `passes` to the load. A rank's sequences keep their
// order.
func (p packer) divideAmongRanks(batch []*Sequence, whole, passes int, load []int) (shares [][]*Sequence) {
	if len(load) == 1 {
		return [][]*Sequence{batch}
	}
	var units [][]*Sequence
	for rest := batch; len(rest) > 0; {
		group := leadingGroup(rest)
		units = append(units, p.microBatches(group, whole)...)
		rest = rest[len(group):]
	}
	rows, longestFirst := make([]int, len(units)), make([]int, len(units))
	for i, unit := range units {
		rows[i], longestFirst[i] = p.rows(unit), i
	}
	slices.SortStableFunc(longestFirst, func(a, b int) int { return rows[b] - rows[a] })
	owner := make([]int, len(units))
	for _, i := range longestFirst {
		owner[i] = slices.Index(load, slices.Min(load))
		load[owner[i]] += passes * rows[i]
	}
	shares = make([][]*Sequence, len(load))
	for i, unit := range units {
		shares[owner[i]] = append(shares[owner[i]], unit...)
	}
	return shares
}

// ownMicroBatches returns this rank's share of a batch, in micro-batches.
func (l *Learner) ownMicroBatches(batch []*Sequence, whole, passes int, load []int) [][]*Sequence {
	p := packerOf(l.model)
	return p.microBatches(p.divideAmongRanks(batch, whole, passes, load)[l.group.Rank()], l.opt.MicroBatchTokens)
}

// updatePlan holds the data that ranks exchange before an update: one rank's own data, or the combination of all ranks' data.
type updatePlan struct {
	Passes   int    // micro-batches with a gradient; combined: the largest number of a rank
	Observed int    // micro-batches without a gradient; combined: the largest number of a rank
	Rows     int    // rows of micro-batches with a gradient, if the load-balancing loss counts them
	Digest   uint64 // of everything that must be equal on all ranks
}

// plan exchanges each rank's plan, or the reason why it cannot take part (ownErr), and combines the plans.
func (l *Learner) plan(ctx context.Context, batch []*Sequence, lr float64, mine [][]*Sequence, observed int, ownErr error) (all updatePlan, err error) {
	own := updatePlan{Passes: len(mine), Observed: observed, Digest: l.digest(batch, uint64(l.State.steps), math.Float64bits(lr))}
	if l.opt.RouterAuxCoef != 0 {
		for _, micro := range mine {
			own.Rows += packerOf(l.model).rows(micro)
		}
	}
	plans, err := agree(ctx, l.group, own, ownErr, 0)
	for r, p := range plans {
		if p.Digest != plans[0].Digest {
			return all, fmt.Errorf("learner: rank %d received a different update from rank 0: other sequences, another learning rate, or other "+
				"updates before it", r)
		}
		all.Passes = max(all.Passes, p.Passes)
		all.Observed = max(all.Observed, p.Observed)
		all.Rows += p.Rows
	}
	return all, err
}

// digest returns a digest of the number of parameters, the sequences of a batch, and the values in more.
func (l *Learner) digest(batch []*Sequence, more ...uint64) uint64 {
	var all []byte
	numbers := func(values ...uint64) {
		for _, v := range values {
			all = binary.LittleEndian.AppendUint64(all, v)
		}
	}
	numbers(append(more, uint64(l.State.params.Numel()))...)
	for _, q := range batch {
		all = append(all, q.ID...)
		numbers(uint64(len(q.Tokens)), uint64(q.Group), math.Float64bits(q.Weight), math.Float64bits(q.Advantage))
		for _, token := range q.Tokens {
			all = binary.LittleEndian.AppendUint32(all, uint32(token))
		}
	}
	h := fnv.New64a()
	_, _ = h.Write(all)
	return h.Sum64()
}
