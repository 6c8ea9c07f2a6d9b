// Package advantages computes advantages without a run, from tensors (Batch), NumPy files
// (Files) or lines of JSON (JSONL). A line of JSON may also ask for alignment draws.
package advantages

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// maxLine bounds one line of JSONL: 64 MiB hold about three million rewards.
const maxLine = 64 << 20

// request is either a list of groups or one alignment.
type request struct {
	Groups []struct {
		Rewards []mgrpo.Number `json:"rewards"`
		Weights []mgrpo.Number `json:"weights"`
	} `json:"groups"`
	Convention json.RawMessage `json:"convention"` // a name or the four settings; absent: mgrpo

	RunSeed *seed   `json:"run_seed"`
	Query   *string `json:"query"`
	Rollout *int    `json:"rollout"`
	Agent   *string `json:"agent"`
	D       *int    `json:"d"`
	DK      *int    `json:"d_k"`
}

// seed is a 64-bit integer, written as a number or as a decimal string (JSON numbers lose bits in many readers).
type seed uint64

func (s *seed) UnmarshalJSON(b []byte) error {
	x, err := strconv.ParseUint(string(bytes.Trim(b, `"`)), 10, 64)
	if err != nil {
		return fmt.Errorf("run_seed %.40s: must be an unsigned 64-bit integer", b)
	}
	*s = seed(x)
	return nil
}

type groupReply struct {
	Advantage  []mgrpo.Number `json:"advantage"`
	Mean       *mgrpo.Number  `json:"mean,omitempty"` // absent in an empty group
	Std        *mgrpo.Number  `json:"std_population,omitempty"`
	Degenerate bool           `json:"degenerate"`
	Empty      bool           `json:"empty,omitempty"`
}

type alignReply struct {
	Multiplicity []int    `json:"multiplicity"`
	Draws        []uint32 `json:"draws"`
}

// JSONL answers each line of r with a line on w, at once: {"groups":[{"rewards","weights"?}], "convention"?} with
// {"groups":[{"advantage","mean","std_population","degenerate"}]}, and {"run_seed","query","rollout","agent","d","d_k"}
// with {"multiplicity","draws"}. The kernel that training uses computes the advantages, on the CPU. JSONL answers a refused line with
// {"error":{...}}, a mgrpo.Refusal. It returns an error only if reading or writing fails.
func JSONL(r io.Reader, w io.Writer) error {
	return answerLines(r, w, kernels.NormaliserOn(kernels.CPU))
}

func answerLines(r io.Reader, w io.Writer, normalise mgrpo.Normaliser) error {
	lines := bufio.NewScanner(texts.NewReader(r))
	lines.Buffer(nil, maxLine)
	encoder := json.NewEncoder(w) // writes an answer in one piece
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		reply, err := answerLine(lines.Bytes(), normalise)
		if err != nil {
			reply = map[string]error{"error": asRefusal(err)}
		}
		if err := encoder.Encode(reply); err != nil {
			return fmt.Errorf("advantages: answer to line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("advantages: reading groups (lines of at most %d MiB): %w", maxLine>>20, err)
	}
	return nil
}

func answerLine(line []byte, normalise mgrpo.Normaliser) (any, error) {
	var q request
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&q); err != nil {
		return nil, malformed(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, &mgrpo.Refusal{Code: mgrpo.MalformedInput, Message: "more than one value on the line"}
	}
	aligns := q.RunSeed != nil || q.Query != nil || q.Rollout != nil || q.Agent != nil || q.D != nil || q.DK != nil
	switch {
	case q.Groups != nil && aligns:
		return nil, &mgrpo.Refusal{Code: mgrpo.MalformedInput, Message: "the line has groups and the keys of an alignment: give one of the two"}
	case q.Groups != nil:
		return q.advantages(normalise)
	case q.Convention != nil:
		return nil, &mgrpo.Refusal{Code: mgrpo.MalformedInput, Message: "convention belongs to groups"}
	}
	return q.alignment()
}

// malformed returns the refusal of a line that is not a request. For a value of another type, the decoder's error names types of Go.
func malformed(err error) error {
	const form = `a line is {"groups": [{"rewards": [1, 0]}]} or an alignment`
	r := &mgrpo.Refusal{Code: mgrpo.MalformedInput, Message: err.Error() + ": " + form}
	if other := (*json.UnmarshalTypeError)(nil); errors.As(err, &other) {
		fault := "is of JSON's type " + other.Value
		if number, isNumber := strings.CutPrefix(other.Value, "number "); isNumber {
			fault = number + " is not an integer within the bounds of this key"
		}
		r.Field, r.Message = strings.TrimPrefix(other.Field, "."), fault+": "+form
	}
	return r
}

func (q request) advantages(normalise mgrpo.Normaliser) (any, error) {
	convention, err := parseConvention(q.Convention)
	if err != nil {
		return nil, err
	}
	groups := make([]mgrpo.RewardGroup, len(q.Groups))
	for i, g := range q.Groups {
		if g.Rewards == nil {
			return nil, &mgrpo.Refusal{Code: mgrpo.MissingReward, Group: &i, Message: "the group has no list of rewards"}
		}
		groups[i] = mgrpo.RewardGroup{Rewards: mgrpo.Floats(g.Rewards), Weights: mgrpo.Floats(g.Weights)}
	}
	normalised, err := normalise(convention, groups)
	if err != nil {
		return nil, err
	}
	replies := make([]groupReply, len(normalised))
	for i, g := range normalised {
		replies[i] = groupReply{Advantage: make([]mgrpo.Number, len(g.Advantage)), Degenerate: g.Degenerate, Empty: g.Empty}
		for k, a := range g.Advantage {
			replies[i].Advantage[k] = mgrpo.Number(a)
		}
		if !g.Empty {
			replies[i].Mean, replies[i].Std = new(mgrpo.Number(g.Mean)), new(mgrpo.Number(g.Std))
		}
	}
	return map[string]any{"groups": replies}, nil
}

func (q request) alignment() (any, error) {
	if q.RunSeed == nil || q.Query == nil || q.Rollout == nil || q.Agent == nil || q.D == nil || q.DK == nil {
		return nil, &mgrpo.Refusal{Code: mgrpo.MalformedInput, Message: `needs "groups", or all of "run_seed", "query", "rollout", "agent", "d", "d_k"`}
	}
	const maxValue = 1 << 20
	for _, f := range []struct {
		name       string
		value, low int
	}{{"rollout", *q.Rollout, 0}, {"d", *q.D, 1}, {"d_k", *q.DK, 0}} {
		if f.value < f.low || f.value > maxValue {
			return nil, &mgrpo.Refusal{Code: mgrpo.MalformedInput, Field: f.name, Message: fmt.Sprintf("must be from %d to %d", f.low, maxValue)}
		}
	}
	multiplicity, draws := mgrpo.Draw(mgrpo.AlignKey(uint64(*q.RunSeed), *q.Query, *q.Rollout, *q.Agent), *q.D, *q.DK)
	return alignReply{multiplicity, draws}, nil
}

func parseConvention(raw json.RawMessage) (mgrpo.Convention, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return mgrpo.DefaultConvention(), nil
	}
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return mgrpo.ConventionByName(name)
	}
	var c mgrpo.Convention
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return c, &mgrpo.Refusal{Code: mgrpo.MalformedInput, Field: "convention", Message: err.Error()}
	}
	return c, c.Validate()
}

func asRefusal(err error) *mgrpo.Refusal {
	if r, ok := err.(*mgrpo.Refusal); ok {
		return r
	}
	return &mgrpo.Refusal{Code: mgrpo.MalformedInput, Message: err.Error()}
}
