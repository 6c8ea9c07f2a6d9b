package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Turn is a follower's answer to a request for a turn.
type Turn struct {
	policy.Completion
	Reply // the error, if there is no turn
	Stats policy.Stats
}

// encodeRequest returns the content of a request's frame: its number, then the request. Integers and the bits of floats
// have 8 bytes; texts and lists follow their lengths (uint32).
func encodeRequest(id uint64, r policy.Request) []byte {
	k, s := r.Key, r.Sampling
	out := make([]byte, 0, len(k.Query)+len(k.Agent)+4*len(r.Tokens)+4*len(s.StopIDs)+256)
	for _, v := range []uint64{id, k.RunSeed, uint64(k.Step), uint64(k.Rollout), uint64(k.Invocation), k.Root, uint64(r.Computed), uint64(s.TopK), uint64(s.MaxNew),
		math.Float64bits(s.Temperature), math.Float64bits(s.TopP), math.Float64bits(s.MinP)} {
		out = order.AppendUint64(out, v)
	}
	out = appendText(appendText(out, k.Query), k.Agent)
	out = order.AppendUint32(out, uint32(len(s.StopStrings)))
	for _, stop := range s.StopStrings {
		out = appendText(out, stop)
	}
	for _, ids := range [][]int32{s.StopIDs, r.Tokens} {
		out = order.AppendUint32(out, uint32(len(ids)))
		for _, t := range ids {
			out = order.AppendUint32(out, uint32(t))
		}
	}
	return out
}

// decodeRequest reads the output of encodeRequest. The engine checks the values.
func decodeRequest(content []byte) (id uint64, r policy.Request, err error) {
	in := reader{rest: content}
	k, s := &r.Key, &r.Sampling
	id = in.uint64()
	k.RunSeed, k.Step, k.Rollout, k.Invocation, k.Root = in.uint64(), int64(in.uint64()), int(in.uint64()), int(in.uint64()), in.uint64()
	r.Computed, s.TopK, s.MaxNew = int(in.uint64()), int(in.uint64()), int(in.uint64())
	s.Temperature, s.TopP, s.MinP = in.float64(), in.float64(), in.float64()
	k.Query, k.Agent = in.text(), in.text()
	for range in.count(4) {
		s.StopStrings = append(s.StopStrings, in.text())
	}
	if n := in.count(4); n > 0 {
		s.StopIDs = column(&in, n, 4, token)
	}
	r.Tokens = column(&in, in.count(4), 4, token)
	if in.short || len(in.rest) > 0 {
		err = errors.New("launch: a request's frame is malformed")
	}
	return id, r, err
}

// encodeTurn returns the content of the answer to request id: number and version, the finish, JSON of the rest, and the
// columns.
func encodeTurn(id uint64, t Turn) ([]byte, error) {
	n := len(t.Tokens)
	if len(t.LogProbs) != n {
		return nil, fmt.Errorf("launch: a turn of %d tokens has %d log-probs", n, len(t.LogProbs))
	}
	beside, err := json.Marshal(besides{t.Reply.short(), t.Stats})
	if err != nil {
		return nil, fmt.Errorf("launch: %w", err)
	}
	out := make([]byte, 0, len(beside)+8*n+2*len(t.Routes)+64)
	out = order.AppendUint64(order.AppendUint64(out, id), uint64(t.Version))
	out = appendText(appendText(out, string(t.Finish)), string(beside))
	out = order.AppendUint32(order.AppendUint32(out, uint32(n)), uint32(len(t.Routes)))
	for _, t := range t.Tokens {
		out = order.AppendUint32(out, uint32(t))
	}
	for _, v := range t.LogProbs {
		out = order.AppendUint32(out, math.Float32bits(v))
	}
	for _, e := range t.Routes {
		out = order.AppendUint16(out, e)
	}
	return out, nil
}

// besides holds a turn's fields that are sent as JSON.
type besides struct {
	Reply
	Stats policy.Stats `json:"stats"`
}

// decodeTurn reads the output of encodeTurn.
func decodeTurn(content []byte) (id uint64, t Turn, err error) {
	in := reader{rest: content}
	id, t.Version = in.uint64(), int64(in.uint64())
	t.Finish = policy.Finish(in.text())
	beside := in.text()
	n, routes := in.count(8), in.count(2)
	t.Tokens, t.LogProbs = column(&in, n, 4, token), column(&in, n, 4, float)
	if routes > 0 {
		t.Routes = column(&in, routes, 2, order.Uint16)
	}
	if in.short || len(in.rest) > 0 {
		return id, t, errors.New("launch: a turn's frame is malformed")
	}
	var b besides
	err = decodeJSON([]byte(beside), &b)
	t.Reply, t.Stats = b.Reply, b.Stats
	return id, t, err
}

// check refuses answers that no engine of the model gives to a request.
func (t Turn) check(r policy.Request, model arch.Config) error {
	switch t.Finish {
	case policy.FinishStop, policy.FinishLength, policy.FinishContext, policy.FinishCancelled:
	default:
		return fmt.Errorf("unknown finish reason %.20q", t.Finish)
	}
	for _, id := range t.Tokens {
		if id < 0 || int(id) >= model.VocabSize {
			return fmt.Errorf("token %d is outside the vocabulary of %d", id, model.VocabSize)
		}
	}
	if err := t.Completion.Check(r.Sampling.MaxNew); err != nil {
		return err
	}
	return model.CheckRoutes(t.Routes, len(r.Tokens)+len(t.Tokens)-1) // the newest token was not computed
}

func appendText(out []byte, text string) []byte {
	return append(order.AppendUint32(out, uint32(len(text))), text...)
}

func token(b []byte) int32   { return int32(order.Uint32(b)) }
func float(b []byte) float32 { return math.Float32frombits(order.Uint32(b)) }
