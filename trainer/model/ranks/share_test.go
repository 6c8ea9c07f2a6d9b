package ranks

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// The shares of all ranks are the whole buffer, each element once, and no rank has more of a block than rank 0.
func TestSharesAreTheWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var blocks []Block
		n, layer := int64(0), 0
		for range r.IntN(12) {
			b := Block{Layer: layer, Span: Span{n, n + r.Int64N(400)}}
			if r.IntN(3) == 0 {
				b.Expert = 1 + r.Int64N(50)
				b.To = n + b.Expert*r.Int64N(7)
			}
			blocks = Extend(blocks, b)
			n = b.To
			layer += r.IntN(2)
		}
		size := 1 + r.IntN(5)
		owners := make([]int, n)
		for rank := range size {
			share := ShareOf(blocks, rank, size)
			at := int64(0)
			for _, p := range share {
				if p.At != at {
					t.Fatalf("a piece is in its buffer from %d on, not %d", p.At, at)
				}
				at += p.Numel()
				for i := p.From; i < p.To; i++ {
					owners[i] += 1 + rank
				}
			}
			if at != share.Numel() || at > ShareOf(blocks, 0, size).Numel() || size == 1 && n > 0 && len(share) != 1 {
				t.Fatalf("rank %d of %d has %d of %d elements in %d pieces", rank, size, at, n, len(share))
			}
			for _, b := range blocks {
				mine := share.Within(b.Span)
				if rank == 0 && b.Numel() > 0 && mine.Numel() < b.Numel()/int64(size) || len(mine) > 1 {
					t.Fatalf("rank %d of %d has %d of the block's %d elements, in %d pieces", rank, size, mine.Numel(), b.Numel(), len(mine))
				}
				if b.Expert == 0 || b.Numel() == 0 {
					continue
				}
				all := int(b.Numel() / b.Expert)
				from, to := Experts(all, rank, size)
				if fair := all / size; mine.Numel() != int64(to-from)*b.Expert || to-from < fair || to-from > fair+1 ||
					len(mine) > 0 && mine[0].From != b.From+int64(from)*b.Expert {
					t.Fatalf("rank %d of %d has %v of %v, which are not experts %d to %d of %d", rank, size, mine, b, from, to, all)
				}
			}
		}
		for i, owner := range owners {
			if owner < 1 || owner > size {
				t.Fatalf("element %d of %d is in no share, or in several", i, n)
			}
		}
	}
}

// Blocks that are in memory at once have places of their own, and every element is as aligned as in the buffer.
func TestArrange(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var blocks []Block
		n, layer := int64(0), 0
		for range 1 + r.IntN(12) {
			b := Block{Layer: layer, Span: Span{n, n + 1 + r.Int64N(400)}}
			if layer > 0 && r.IntN(3) == 0 {
				b.Expert = 1 + r.Int64N(50)
				b.To = n + b.Expert*(1+r.Int64N(4))
			}
			blocks = Extend(blocks, b)
			n = b.To
			layer = max(0, layer+r.IntN(4)-1)
		}
		turns := r.IntN(4)
		room := func(b Block) int64 { return b.Computed(1, 2) } // of one expert rank 1 has none
		places, size := Arrange(blocks, turns, room)
		for _, b := range blocks {
			if there := slices.ContainsFunc(places, func(p Placement) bool { return p.Block == b && p.Room == room(b) }); there != (room(b) > 0) {
				t.Fatalf("%+v has a place: %v", b, there)
			}
		}
		meet := func(a, b Placement) bool { // in memory, at one time
			return turns == 0 || a.Layer == b.Layer || min(a.Layer, b.Layer) == 0 || max(a.Layer, b.Layer)-min(a.Layer, b.Layer) < turns
		}
		for i, a := range places {
			if a.First < 0 || a.First+a.Room > size || a.First%64 != a.From%64 {
				t.Fatalf("%+v of %d elements", a, size)
			}
			for _, b := range places[:i] {
				if meet(a, b) && a.First < b.First+b.Room && b.First < a.First+a.Room {
					t.Fatalf("%+v and %+v overlap; %d layers are there at once", a, b, turns)
				}
				if turns > 0 && b.Layer < a.Layer && b.Layer == 0 {
					t.Fatalf("%+v is listed before %+v", b, a)
				}
			}
			if PlaceOf(places, a.From) != a.First {
				t.Fatalf("element %d is at %d, want %d", a.From, PlaceOf(places, a.From), a.First)
			}
		}
	}
}

// A part of a share keeps its place in the share's buffer.
func TestWithinKeepsBufferOffsets(t *testing.T) {
	share := Share{{Span{10, 20}, 0}, {Span{30, 45}, 10}}
	got := share.Within(Span{15, 42}).Cut(8)
	want := Share{{Span{15, 20}, 5}, {Span{30, 38}, 10}, {Span{38, 42}, 18}}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] || got[i].In(25, 100) != want[i].At || got[i].In(100, 100) != want[i].From {
			t.Errorf("piece %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestShareWithout(t *testing.T) {
	share := Share{{Span{10, 20}, 0}, {Span{30, 40}, 10}}
	for _, c := range []struct {
		spans []Span
		want  Share
	}{
		{nil, share},
		{[]Span{{0, 10}, {20, 30}, {40, 50}}, share},
		{[]Span{{10, 11}, {19, 31}}, Share{{Span{11, 19}, 1}, {Span{31, 40}, 11}}},
		{[]Span{{35, 45}}, Share{{Span{10, 20}, 0}, {Span{30, 35}, 10}}},
	} {
		if got := share.Without(c.spans); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.spans, got, c.want)
		}
	}
}
