package learner

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Sequence is one trajectory, or one row of it, as the learner reads it. Token t is trained if Sampled[t]. Its log-prob
// depends on the tokens before it, so Sampled[0] must be false. Tokens, Sampled and Behaviour have equal length.
type Sequence struct {
	ID           string
	TrajectoryID string // id of the row's trajectory, whose rows share one weight
	Tokens       []int32
	Sampled      []bool
	Behaviour    []float32 // log-prob of each token from the sampler, in nats; read only where Sampled is true
	Group        int64     // sequences with the same number are compared with each other: the query
	Weight       float64   // alignment weight; 0: dropped
	Advantage    float64
	Reward       float64  // the trajectory's, before normalisation; read by a program's loss term only, like Step
	Step         int64    // training step, from 0
	Stale        bool     // sampled by a policy version older than the trained one
	Routes       []uint16 // experts of the first tokens, arch.Config.RouteWidth each, as the sampler chose them; nil: unknown

	old, ref []float32 // log-probs like Behaviour, of the old policy and the reference; Prepare fills them
}

// trained lists the positions of the sampled tokens.
func (q *Sequence) trained() []int {
	var at []int
	for t, s := range q.Sampled {
		if s {
			at = append(at, t)
		}
	}
	return at
}

func (q *Sequence) check(vocab int) error {
	if len(q.Sampled) != len(q.Tokens) || (q.Behaviour != nil && len(q.Behaviour) != len(q.Tokens)) {
		return fmt.Errorf("learner: %s: %d tokens, %d mask entries, %d log-probs", q.ID, len(q.Tokens), len(q.Sampled), len(q.Behaviour))
	}
	if len(q.Sampled) > 0 && q.Sampled[0] {
		return fmt.Errorf("learner: %s: the first token is marked as sampled, but nothing precedes it", q.ID)
	}
	for t, id := range q.Tokens {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("learner: %s: token %d is %d, outside the vocabulary of %d", q.ID, t, id, vocab)
		}
	}
	return nil
}

// byID sorts a batch, so that packing and rounding do not depend on the order of arrival.
func byID(batch []*Sequence) []*Sequence {
	return slices.SortedFunc(slices.Values(batch), func(a, b *Sequence) int { return cmp.Compare(a.ID, b.ID) })
}

// inputs returns the tokens that the model reads: all before the last trained token.
func (q *Sequence) inputs() []int32 {
	last := len(q.Sampled) - 1
	for last >= 0 && !q.Sampled[last] {
		last--
	}
	return q.Tokens[:max(last, 0)]
}

// packer packs sequences for a model. With the zero value, sequences of a micro-batch share the rows of a common prefix.
type packer struct {
	apart bool // every sequence has rows of its own
}

func packerOf(m *model.Model) packer { return packer{apart: !arch.SharesPrefixes(m.Config)} }

// tree returns an empty tree.
func (p packer) tree() prefixTree { return prefixTree{apart: p.apart} }

// rows returns the number of rows of a micro-batch.
func (p packer) rows(micro []*Sequence) int {
	tree := p.tree().with(micro)
	return tree.len()
}

// microBatches cuts a batch into micro-batches of at most limit rows; a longer sequence gets a micro-batch of its own.
// A group that fits into one micro-batch is not cut, so that prefixes that its sequences share are computed only once.
func (p packer) microBatches(batch []*Sequence, limit int) [][]*Sequence {
	var out [][]*Sequence
	var micro []*Sequence
	none := p.tree()
	rows := none
	cut := func() {
		if len(micro) > 0 {
			out = append(out, micro)
		}
		micro, rows = nil, none
	}
	for len(batch) > 0 {
		group := leadingGroup(batch)
		batch = batch[len(group):]
		if whole := rows.with(group); whole.len() <= limit {
			micro, rows = append(micro, group...), whole
			continue
		}
		if alone := none.with(group); alone.len() <= limit {
			cut()
			micro, rows = append(micro, group...), alone
			continue
		}
		for _, q := range group {
			if rows.len()+rows.missing(q.inputs()) > limit {
				cut()
			}
			rows.add(q.inputs())
			micro = append(micro, q)
		}
	}
	cut()
	return out
}

// leadingGroup returns the sequences at the start of a batch that have the group of the first.
func leadingGroup(batch []*Sequence) []*Sequence {
	n := slices.IndexFunc(batch, func(q *Sequence) bool { return q.Group != batch[0].Group })
	if n < 0 {
		return batch
	}
	return batch[:n]
}

// packed is a micro-batch on the device. Trained token i of N has id target[i] and is predicted by hidden row source[i].
type packed struct {
	in     model.Packed
	rows   int
	paths  [][]int32     // of each sequence, the rows of its inputs
	source *torch.Tensor // int32 [N]
	target *torch.Tensor // int32 [N]
	n      int
}

// pack concatenates sequences without padding. A prefix that a sequence shares with an earlier sequence is packed once,
// unless sequences are packed apart. Positions count from 0 in each sequence.
func (p packer) pack(s *torch.Scope, micro []*Sequence) packed {
	rows := p.tree()
	var source, target []int32
	var paths [][]int32
	for _, q := range micro {
		path := rows.add(q.inputs())
		paths = append(paths, path)
		for _, t := range q.trained() {
			source = append(source, path[t-1])
			target = append(target, q.Tokens[t])
		}
	}
	vector := func(v []int32) *torch.Tensor { return s.FromInt32(v, int64(len(v))) }
	return packed{
		in: model.Packed{
			IDs: vector(rows.ids), Pos: vector(rows.positions),
			Cu: vector(append(slices.Clone(rows.first), int32(rows.len()))), Follows: vector(rows.follows),
		},
		rows: rows.len(), paths: paths, source: vector(source), target: vector(target), n: len(target),
	}
}

// gather concatenates a per-token array over sequences, trained positions only.
func gather(micro []*Sequence, of func(*Sequence) []float32) []float32 {
	var out []float32
	for _, q := range micro {
		values := of(q)
		for _, t := range q.trained() {
			out = append(out, values[t])
		}
	}
	return out
}
