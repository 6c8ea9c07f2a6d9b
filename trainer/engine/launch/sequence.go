package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/engine/learner"
)

// Layout of a sequence's content: its two names, each after its length (uint32); Group, Weight, Advantage (8 bytes
// each); a byte of flags; the numbers of its tokens and experts (uint32); and its columns. All values are
// little-endian. Floats are sent as bits, so that a non-finite one arrives unchanged and the learner refuses it.
const (
	staleFlag     = 1
	behaviourFlag = 2 // there is one log-prob of the sampler for each token
	knownFlags    = staleFlag | behaviourFlag
)

var order = binary.LittleEndian

// encodeSequence returns the content of a sequence's frame.
func encodeSequence(q *learner.Sequence) ([]byte, error) {
	n := len(q.Tokens)
	if len(q.Sampled) != n || q.Behaviour != nil && len(q.Behaviour) != n {
		return nil, fmt.Errorf("launch: %s: %d tokens, %d mask entries, %d log-probs", q.ID, n, len(q.Sampled), len(q.Behaviour))
	}
	out := make([]byte, 0, len(q.ID)+len(q.Whole)+9*n+2*len(q.Routes)+64)
	out = appendText(appendText(out, q.ID), q.Whole)
	for _, v := range []uint64{uint64(q.Group), math.Float64bits(q.Weight), math.Float64bits(q.Advantage)} {
		out = order.AppendUint64(out, v)
	}
	var flags byte
	if q.Stale {
		flags |= staleFlag
	}
	if q.Behaviour != nil {
		flags |= behaviourFlag
	}
	out = order.AppendUint32(order.AppendUint32(append(out, flags), uint32(n)), uint32(len(q.Routes)))
	for _, id := range q.Tokens {
		out = order.AppendUint32(out, uint32(id))
	}
	for _, v := range q.Behaviour {
		out = order.AppendUint32(out, math.Float32bits(v))
	}
	for _, e := range q.Routes {
		out = order.AppendUint16(out, e)
	}
	for _, sampled := range q.Sampled {
		var b byte
		if sampled {
			b = 1
		}
		out = append(out, b)
	}
	return out, nil
}

// decodeSequence reads the output of encodeSequence. The learner checks the values.
func decodeSequence(content []byte) (*learner.Sequence, error) {
	r := reader{rest: content}
	q := &learner.Sequence{ID: r.text(), Whole: r.text()}
	q.Group, q.Weight, q.Advantage = int64(r.uint64()), r.float64(), r.float64()
	flags, n, routes := r.byte(), r.count(5), r.count(2)
	q.Stale = flags&staleFlag != 0
	q.Tokens = column(&r, n, 4, token)
	if flags&behaviourFlag != 0 {
		q.Behaviour = column(&r, n, 4, float)
	}
	if routes > 0 {
		q.Routes = column(&r, routes, 2, order.Uint16)
	}
	q.Sampled = column(&r, n, 1, func(b []byte) bool { return b[0] != 0 })
	if r.short || len(r.rest) > 0 || flags&^knownFlags != 0 {
		return nil, errors.New("launch: a sequence's frame is malformed")
	}
	return q, nil
}

// reader reads values from the front of a content. After its end every value is 0.
type reader struct {
	rest  []byte
	short bool // a value was missing
}

func (r *reader) take(n int) []byte {
	if n > len(r.rest) {
		r.short, r.rest = true, nil
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return order.Uint64(b)
	}
	return 0
}

func (r *reader) float64() float64 { return math.Float64frombits(r.uint64()) }

// count reads a number of values of at least `each` bytes each. The content must be long enough for them.
func (r *reader) count(each int) int {
	b := r.take(4)
	if b == nil {
		return 0
	}
	n := int64(order.Uint32(b))
	if n*int64(each) > int64(len(r.rest)) {
		r.short, r.rest = true, nil
		return 0
	}
	return int(n)
}

func (r *reader) text() string { return string(r.take(r.count(1))) }

// column reads n values of `bytes` bytes each; it never returns nil.
func column[T any](r *reader, n, bytes int, of func([]byte) T) []T {
	content, out := r.take(n*bytes), make([]T, 0, n)
	for ; len(content) > 0; content = content[bytes:] {
		out = append(out, of(content))
	}
	return out
}
