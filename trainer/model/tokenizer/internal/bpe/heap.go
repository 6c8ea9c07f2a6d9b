package bpe

// candidates is a binary min-heap of rank<<32|position: lowest rank first, then leftmost.
type candidates []uint64

func (q *candidates) push(v uint64) {
	h := append(*q, v)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent] <= v {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = v
	*q = h
}

func (q *candidates) pop() uint64 {
	h := *q
	top, v := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	for i := 0; len(h) > 0; {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if child >= len(h) || v <= h[child] {
			h[i] = v
			break
		}
		h[i] = h[child]
		i = child
	}
	return top
}
