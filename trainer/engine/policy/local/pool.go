package local

// pool counts the users of a layer group's blocks. It has no tensors.
type pool struct {
	free      []int32
	owners    []int // cached sequences that have the block, by block
	inFlight  []int // number of these that are in flight
	available int   // blocks of no cached sequence in flight: free ones, and ones that idle cached sequences can give up
}

func newPool(blocks int) *pool {
	p := &pool{owners: make([]int, blocks), inFlight: make([]int, blocks), available: blocks}
	for b := blocks - 1; b >= 0; b-- {
		p.free = append(p.free, int32(b))
	}
	return p
}

// take returns a free block without owners. There must be one.
func (p *pool) take() int32 {
	last := len(p.free) - 1
	b := p.free[last]
	p.free = p.free[:last]
	return b
}

// own adds an owner of a block; drop removes one, which must not be in flight.
func (p *pool) own(b int32) { p.owners[b]++ }

func (p *pool) drop(b int32) {
	if p.owners[b]--; p.owners[b] == 0 {
		p.free = append(p.free, b)
	}
}

// hold records that an owner of the block is in flight; release ends that.
func (p *pool) hold(b int32) {
	if p.inFlight[b]++; p.inFlight[b] == 1 {
		p.available--
	}
}

func (p *pool) release(b int32) {
	if p.inFlight[b]--; p.inFlight[b] == 0 {
		p.available++
	}
}
