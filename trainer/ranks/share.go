package ranks

import (
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Run is elements [From, To) of a flat buffer.
type Run struct{ From, To int64 }

// Numel is how many they are.
func (r Run) Numel() int64 { return r.To - r.From }

// Block is the parameters of a layer that lie side by side in a flat buffer. Ranks divide each block among them, so that every rank has an
// equal share of every layer.
type Block struct {
	Run
	Layer int // from 1 on; 0: of none
}

// Extend adds a run of a layer's parameters to blocks, in the order of the buffer.
func Extend(blocks []Block, layer int, r Run) []Block {
	if i := len(blocks) - 1; i >= 0 && blocks[i].Layer == layer && blocks[i].To == r.From {
		blocks[i].To = r.To
		return blocks
	}
	return append(blocks, Block{r, layer})
}

// Share is what one rank has of a flat buffer, in its order. A buffer of the share alone has these pieces one after the other.
type Share []Piece

// Piece is a run of a share, which a buffer of the share alone has from element At on.
type Piece struct {
	Run
	At int64
}

// ShareOf is the share of a rank of so many. Pieces begin at multiples of 64 from the beginning of their block. Rank 0 has as much as any.
func ShareOf(blocks []Block, rank, size int) (s Share) {
	at := int64(0)
	for _, b := range blocks {
		from, to := torch.Share(b.Numel(), rank, size)
		r := Run{b.From + from, b.From + to}
		if i := len(s) - 1; i >= 0 && s[i].To == r.From {
			s[i].To = r.To
		} else if from < to {
			s = append(s, Piece{r, at})
		}
		at += r.Numel()
	}
	return s
}

// Numel is the number of elements.
func (s Share) Numel() (n int64) {
	for _, p := range s {
		n += p.Numel()
	}
	return n
}

// Within is the part of a share that lies in a run of the whole buffer.
func (s Share) Within(r Run) (part Share) {
	for _, p := range s {
		from, to := max(p.From, r.From), min(p.To, r.To)
		if from < to {
			part = append(part, Piece{Run{from, to}, p.At + from - p.From})
		}
	}
	return part
}

// Cut is the same share in pieces of no more than most elements.
func (s Share) Cut(most int64) (cut Share) {
	for _, p := range s {
		for from := p.From; from < p.To; from += most {
			cut = append(cut, Piece{Run{from, min(from+most, p.To)}, p.At + from - p.From})
		}
	}
	return cut
}

// In is where a piece begins in a buffer of so many elements, which is the share's alone or whole, with `all` elements.
func (p Piece) In(numel, all int64) int64 {
	if numel == all {
		return p.From
	}
	return p.At
}

// Place is a block in memory, where it begins at element First.
type Place struct {
	Block
	First int64
}

// Arrange places blocks in memory, and says how much they need: what is of no layer first, and behind that the layers, which take turns in
// so many places; layers that follow each other are in different ones. They are listed in the order of a backward pass: from the last layer
// down, and last what is of none. With no turns all blocks have places of their own. Every element is as aligned as in the buffer.
func Arrange(blocks []Block, turns int) (places []Place, size int64) {
	var layers, others []Place
	long := map[int]int64{} // of the layers that take turns
	longest := int64(0)
	for _, b := range blocks {
		if turns == 0 || b.Layer == 0 {
			others = append(others, Place{b, aligned(size, b.From)})
			size = aligned(size, b.From) + b.Numel()
			continue
		}
		at := aligned(long[b.Layer], b.From)
		layers = append(layers, Place{b, at})
		long[b.Layer] = at + b.Numel()
		longest = max(longest, aligned(long[b.Layer], 0))
	}
	slices.Reverse(layers)
	if turns > 0 {
		behind := aligned(size, 0)
		for i, b := range layers {
			layers[i].First += behind + int64(b.Layer%turns)*longest
		}
		size = behind + int64(turns)*longest
	}
	return append(layers, others...), size
}

// aligned is the first place from at on that is as aligned as element from.
func aligned(at, from int64) int64 {
	const unit = 64 // elements
	return at + (from%unit-at%unit+unit)%unit
}

// At is where an element of the buffer is in memory.
func At(places []Place, element int64) int64 {
	for _, p := range places {
		if p.From <= element && element < p.To {
			return p.First + element - p.From
		}
	}
	return -1
}
