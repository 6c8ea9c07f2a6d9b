package launch

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"

	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
)

// turnRequest is the content of a request's frame.
type turnRequest struct {
	ID       uint64
	Tokens   []int32
	Sampling policy.Sampling
	Key      policy.Key
	Computed int
}

// turnAnswer is the content of a turn's frame: the answer to the request with this ID.
type turnAnswer struct {
	ID   uint64
	Turn Turn
}

// encodeColumns returns the gob encoding of a value with long columns: a *learner.Sequence, a turnRequest or a turnAnswer. gob sends
// floats as bits, so a non-finite value arrives unchanged, and the learner or the policy refuses it.
func encodeColumns(value any) ([]byte, error) {
	var out bytes.Buffer
	if err := gob.NewEncoder(&out).Encode(value); err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}
	return out.Bytes(), nil
}

// decodeColumns decodes exactly one value that encodeColumns encoded. The caller checks the numbers in it.
func decodeColumns[T any](content []byte) (value T, err error) {
	d := gob.NewDecoder(bytes.NewReader(content))
	if err := d.Decode(&value); err != nil {
		// %v, because a wrapped io.EOF would mean that the pipe was closed.
		return value, fmt.Errorf("launch: a malformed %T: %v", value, err)
	}
	if err := d.Decode(&value); !errors.Is(err, io.EOF) {
		return value, fmt.Errorf("launch: more than one %T in a frame", value)
	}
	return value, nil
}

// encodeSequence returns the content of a sequence's frame. It refuses columns of different lengths.
func encodeSequence(q *learner.Sequence) ([]byte, error) {
	if n := len(q.Tokens); len(q.Sampled) != n || q.Behaviour != nil && len(q.Behaviour) != n {
		return nil, fmt.Errorf("launch: %s: %d tokens, %d mask entries, %d log-probs", q.ID, n, len(q.Sampled), len(q.Behaviour))
	}
	return encodeColumns(q)
}
