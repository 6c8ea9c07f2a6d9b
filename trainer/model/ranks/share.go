package ranks

import (
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Span is the elements [From, To) of a flat buffer.
type Span struct{ From, To int64 }

// Numel returns the number of elements.
func (r Span) Numel() int64 { return r.To - r.From }

// Block is adjacent parameters of one layer in a flat buffer. Ranks divide each block among them, so that every rank
// has an equal share of every layer.
type Block struct {
	Span
	Layer  int   // from 1; 0: not part of a layer
	Expert int64 // elements of each expert, in a matrix of experts that ranks own as a whole; 0: any other matrix, which ranks gather
}

// Extend appends a block, in the order of the buffer. It merges blocks of one layer, except experts.
func Extend(blocks []Block, b Block) []Block {
	if i := len(blocks) - 1; i >= 0 && b.Expert == 0 && blocks[i].Expert == 0 && blocks[i].Layer == b.Layer && blocks[i].To == b.From {
		blocks[i].To = b.To
		return blocks
	}
	return append(blocks, b)
}

// Experts returns the range of experts that a rank owns. The numbers of any two ranks differ by at most one.
func Experts(all, rank, size int) (from, to int) {
	first := func(rank int) int { return rank*(all/size) + min(rank, all%size) }
	return first(rank), first(rank + 1)
}

// Share returns the part of the block that belongs to a rank.
func (b Block) Share(rank, size int) Span {
	from, to := torch.Share(b.Numel(), rank, size)
	if b.Expert > 0 {
		first, last := Experts(int(b.Numel()/b.Expert), rank, size)
		from, to = int64(first)*b.Expert, int64(last)*b.Expert
	}
	return Span{b.From + from, b.From + to}
}

// Gathered returns the number of elements that ranks gather to compute with the block.
func (b Block) Gathered() int64 {
	if b.Expert > 0 {
		return 0
	}
	return b.Numel()
}

// Computed returns the number of elements whose gradient a rank computes: its own experts, or the whole of any other block.
func (b Block) Computed(rank, size int) int64 {
	if b.Expert > 0 {
		return b.Share(rank, size).Numel()
	}
	return b.Numel()
}

// Share is one rank's part of a flat buffer, in the buffer's order. A buffer for this share alone holds the pieces one after
// the other.
type Share []Piece

// Piece is a span of a share.
type Piece struct {
	Span
	At int64 // its first element in a buffer for the share alone
}

// ShareOf returns the share of a rank. Pieces begin at multiples of 64 from the beginning of their block, or with an
// expert. No rank has more than rank 0.
func ShareOf(blocks []Block, rank, size int) (s Share) {
	at := int64(0)
	for _, b := range blocks {
		r := b.Share(rank, size)
		if i := len(s) - 1; i >= 0 && s[i].To == r.From {
			s[i].To = r.To
		} else if r.From < r.To {
			s = append(s, Piece{r, at})
		}
		at += r.Numel()
	}
	return s
}

// Numel returns the number of elements.
func (s Share) Numel() (n int64) {
	for _, p := range s {
		n += p.Numel()
	}
	return n
}

// Within returns the part of a share inside a span of the whole buffer.
func (s Share) Within(r Span) (part Share) {
	for _, p := range s {
		from, to := max(p.From, r.From), min(p.To, r.To)
		if from < to {
			part = append(part, Piece{Span{from, to}, p.At + from - p.From})
		}
	}
	return part
}

// Cut returns the same share in pieces of at most `most` elements.
func (s Share) Cut(most int64) (cut Share) {
	for _, p := range s {
		for from := p.From; from < p.To; from += most {
			cut = append(cut, Piece{Span{from, min(from+most, p.To)}, p.At + from - p.From})
		}
	}
	return cut
}

// Without returns the pieces of the share that lie outside of spans, which are in order.
func (s Share) Without(spans []Span) (rest Share) {
	for _, p := range s {
		for _, r := range spans {
			if r.To <= p.From || r.From >= p.To {
				continue
			}
			if r.From > p.From {
				rest = append(rest, Piece{Span{p.From, r.From}, p.At})
			}
			p = Piece{Span{min(r.To, p.To), p.To}, p.At + min(r.To, p.To) - p.From}
		}
		if p.From < p.To {
			rest = append(rest, p)
		}
	}
	return rest
}

// In returns the offset of a piece in a buffer of numel elements, which holds all parameters if numel equals `all`, and only
// the share otherwise.
func (p Piece) In(numel, all int64) int64 {
	if numel == all {
		return p.From
	}
	return p.At
}

// Placement is the place of a block in memory: the elements First to First+Room-1.
type Placement struct {
	Block
	First, Room int64
}

// Arrange places blocks in memory and returns the total size. room returns the number of elements that a block needs there.
// Blocks without a layer come first. Layers follow, in `turns` places that they use in turn, so that consecutive layers have
// different places. If turns is 0, all blocks have separate places. places lists the blocks in the order of a backward pass:
// from the last layer down, then blocks without a layer. Every element keeps the alignment that it has in the buffer.
func Arrange(blocks []Block, turns int, room func(Block) int64) (places []Placement, size int64) {
	var layers, others []Placement
	sizes := map[int]int64{} // size of each layer in its place
	longest := int64(0)
	for _, b := range blocks {
		p := Placement{Block: b, Room: room(b)}
		switch {
		case p.Room == 0:
		case turns == 0 || b.Layer == 0:
			p.First = alignUp(size, b.From)
			others = append(others, p)
			size = p.First + p.Room
		default:
			p.First = alignUp(sizes[b.Layer], b.From)
			layers = append(layers, p)
			sizes[b.Layer] = p.First + p.Room
			longest = max(longest, alignUp(sizes[b.Layer], 0))
		}
	}
	slices.Reverse(layers)
	if turns > 0 {
		behind := alignUp(size, 0)
		for i, b := range layers {
			layers[i].First += behind + int64(b.Layer%turns)*longest
		}
		size = behind + int64(turns)*longest
	}
	return append(layers, others...), size
}

// alignUp returns the first place at or after `at` with the alignment of element `from`.
func alignUp(at, from int64) int64 {
	const unit = 64 // elements
	return at + (from%unit-at%unit+unit)%unit
}

// PlaceOf returns the place in memory of an element of the buffer, or -1 if it has none.
func PlaceOf(places []Placement, element int64) int64 {
	for _, p := range places {
		if p.From <= element && element < p.To {
			return p.First + element - p.From
		}
	}
	return -1
}
