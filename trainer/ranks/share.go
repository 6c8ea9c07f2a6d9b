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
	Layer  int   // from 1 on; 0: of none
	Expert int64 // elements of each expert, of a matrix of experts which ranks have whole ones of; 0: of whatever else, which ranks gather
}

// Extend adds a block to others, in the order of the buffer. Those of a layer become one, but for experts.
func Extend(blocks []Block, b Block) []Block {
	if i := len(blocks) - 1; i >= 0 && b.Expert == 0 && blocks[i].Expert == 0 && blocks[i].Layer == b.Layer && blocks[i].To == b.From {
		blocks[i].To = b.To
		return blocks
	}
	return append(blocks, b)
}

// Experts are those of so many that a rank has: as many as any other rank, or one more.
func Experts(all, rank, size int) (from, to int) {
	first := func(rank int) int { return rank*(all/size) + min(rank, all%size) }
	return first(rank), first(rank + 1)
}

// Share is what a rank of so many has of the block.
func (b Block) Share(rank, size int) Run {
	from, to := torch.Share(b.Numel(), rank, size)
	if b.Expert > 0 {
		first, last := Experts(int(b.Numel()/b.Expert), rank, size)
		from, to = int64(first)*b.Expert, int64(last)*b.Expert
	}
	return Run{b.From + from, b.From + to}
}

// Gathered is how many elements of the block ranks bring together to compute with it.
func (b Block) Gathered() int64 {
	if b.Expert > 0 {
		return 0
	}
	return b.Numel()
}

// Computed is of how many elements of the block a rank of so many computes the gradient: of all that is gathered, and of its own experts.
func (b Block) Computed(rank, size int) int64 {
	if b.Expert > 0 {
		return b.Share(rank, size).Numel()
	}
	return b.Numel()
}

// Share is what one rank has of a flat buffer, in its order. A buffer of the share alone has these pieces one after the other.
type Share []Piece

// Piece is a run of a share, which a buffer of the share alone has from element At on.
type Piece struct {
	Run
	At int64
}

// ShareOf is the share of a rank of so many. Pieces begin at multiples of 64 from the beginning of their block, or with an expert. Rank 0 has
// as much as any.
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

// Place is a block in memory, of which it has elements First to First+Room.
type Place struct {
	Block
	First, Room int64
}

// Arrange places blocks in memory, those that need room there, and says how much they need: what is of no layer first, and behind that the
// layers, which take turns in so many places; layers that follow each other are in different ones. They are listed in the order of a backward
// pass: from the last layer down, and last what is of none. With no turns all blocks have places of their own. Every element is as aligned as
// in the buffer.
func Arrange(blocks []Block, turns int, room func(Block) int64) (places []Place, size int64) {
	var layers, others []Place
	long := map[int]int64{} // of the layers that take turns
	longest := int64(0)
	for _, b := range blocks {
		p := Place{Block: b, Room: room(b)}
		switch {
		case p.Room == 0:
		case turns == 0 || b.Layer == 0:
			p.First = aligned(size, b.From)
			others = append(others, p)
			size = p.First + p.Room
		default:
			p.First = aligned(long[b.Layer], b.From)
			layers = append(layers, p)
			long[b.Layer] = p.First + p.Room
			longest = max(longest, aligned(long[b.Layer], 0))
		}
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
