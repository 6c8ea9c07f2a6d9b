package learner

import (
	"maps"
	"slices"
)

// prefixTree stores token sequences with one row for each distinct prefix, so that a shared prefix is stored once. The
// rows that a sequence adds form one segment. Segments have the order in which the sequences were added.
type prefixTree struct {
	ids, positions []int32                // by row
	first, follows []int32                // by segment: its first row, and the row that precedes it in the sequence or -1
	next           map[continuation]int32 // row
	apart          bool                   // every sequence has rows of its own
}

// continuation is a token after a row; row -1 is the start of a sequence.
type continuation struct{ row, id int32 }

func (t *prefixTree) len() int { return len(t.ids) }

// walk returns the rows of the longest prefix of tokens in the tree.
func (t *prefixTree) walk(tokens []int32) []int32 {
	rows := make([]int32, 0, len(tokens))
	at := int32(-1)
	for _, id := range tokens {
		row, ok := t.next[continuation{at, id}]
		if !ok || t.apart {
			break
		}
		at, rows = row, append(rows, row)
	}
	return rows
}

// add adds a sequence and returns the row of each token.
func (t *prefixTree) add(tokens []int32) []int32 {
	if t.next == nil {
		t.next = map[continuation]int32{}
	}
	rows := t.walk(tokens)
	if len(rows) == len(tokens) {
		return rows
	}
	at := int32(-1)
	if len(rows) > 0 {
		at = rows[len(rows)-1]
	}
	t.first, t.follows = append(t.first, int32(t.len())), append(t.follows, at)
	for position := len(rows); position < len(tokens); position++ {
		row := int32(t.len())
		t.next[continuation{at, tokens[position]}] = row
		t.ids, t.positions = append(t.ids, tokens[position]), append(t.positions, int32(position))
		at, rows = row, append(rows, row)
	}
	return rows
}

// missing returns the number of rows that add(tokens) would add.
func (t *prefixTree) missing(tokens []int32) int { return len(tokens) - len(t.walk(tokens)) }

// with returns a copy with the inputs of a group added.
func (t prefixTree) with(group []*Sequence) prefixTree {
	t = prefixTree{
		ids: slices.Clone(t.ids), positions: slices.Clone(t.positions),
		first: slices.Clone(t.first), follows: slices.Clone(t.follows), next: maps.Clone(t.next), apart: t.apart,
	}
	for _, q := range group {
		t.add(q.inputs())
	}
	return t
}
