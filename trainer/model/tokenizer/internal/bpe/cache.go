package bpe

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// pieceCache caches the ids of pieces. It has a fixed size and is direct-mapped: a new piece replaces the piece with the
// same hash. It is safe for concurrent use.
type pieceCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedPiece]
}

type cachedPiece struct {
	piece string
	ids   []int32
}

const (
	cacheSlots    = 1 << 15
	maxCachedSize = 64 // bytes of a piece
)

func newPieceCache() *pieceCache {
	return &pieceCache{maphash.MakeSeed(), make([]atomic.Pointer[cachedPiece], cacheSlots)}
}

// get returns a piece's ids, or nil if they are not cached, and the slot for them, or nil if the piece is too long.
func (c *pieceCache) get(piece string) ([]int32, *atomic.Pointer[cachedPiece]) {
	if len(piece) > maxCachedSize {
		return nil, nil
	}
	slot := &c.slots[maphash.String(c.seed, piece)%cacheSlots]
	if e := slot.Load(); e != nil && e.piece == piece {
		return e.ids, slot
	}
	return nil, slot
}

func (c *pieceCache) put(slot *atomic.Pointer[cachedPiece], piece string, ids []int32) {
	if slot != nil {
		slot.Store(&cachedPiece{strings.Clone(piece), append([]int32{}, ids...)})
	}
}
