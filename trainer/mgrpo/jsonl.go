package mgrpo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
)

// maxLine bounds one line of AdvantagesJSONL: 64 MiB hold about three million rewards.
const maxLine = 64 << 20

// Number is a float64 that JSON may also spell "NaN", "Infinity" or "-Infinity".
type Number float64

// UnmarshalJSON reads a number or one of the three strings.
func (n *Number) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case `"NaN"`:
		*n = Number(math.NaN())
	case `"Infinity"`:
		*n = Number(math.Inf(1))
	case `"-Infinity"`:
		*n = Number(math.Inf(-1))
	default:
		x, err := strconv.ParseFloat(string(b), 64)
		if err != nil {
			return fmt.Errorf("%.40s is not a number, \"NaN\", \"Infinity\" or \"-Infinity\"", b)
		}
		*n = Number(x)
	}
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (n Number) MarshalJSON() ([]byte, error) {
	switch x := float64(n); {
	case math.IsNaN(x):
		return []byte(`"NaN"`), nil
	case math.IsInf(x, 0):
		return fmt.Appendf(nil, "%q", map[bool]string{true: "Infinity", false: "-Infinity"}[x > 0]), nil
	default:
		return json.Marshal(x)
	}
}

// request is either a list of groups or one alignment.
type request struct {
	Groups []struct {
		Rewards []Number `json:"rewards"`
		Weights []Number `json:"weights"`
	} `json:"groups"`
	Convention json.RawMessage `json:"convention"` // a name or the four settings; absent: mgrpo

	RunSeed *seed   `json:"run_seed"`
	Query   *string `json:"query"`
	Rollout *int    `json:"rollout"`
	Agent   *string `json:"agent"`
	D       *int    `json:"d"`
	DK      *int    `json:"d_k"`
}

// seed is a 64-bit integer, as a number or as a decimal string (JSON numbers lose bits in many readers).
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
	Advantage  []Number `json:"advantage"`
	Mean       *Number  `json:"mean,omitempty"` // absent in an empty group
	Std        *Number  `json:"std_population,omitempty"`
	Degenerate bool     `json:"degenerate"`
	Empty      bool     `json:"empty,omitempty"`
}

type alignReply struct {
	Multiplicity []int    `json:"multiplicity"`
	Draws        []uint32 `json:"draws"`
}

// AdvantagesJSONL answers each line of r with a line on w: {"groups":[{"rewards","weights"?}],
// "convention"?} with {"groups":[{"advantage","mean","std_population","degenerate"}]}, and
// {"run_seed","query","rollout","agent","d","d_k"} with {"multiplicity","draws"}. A line that is refused
// is answered {"error":{...}}, a Refusal; the error returned is one of reading or writing.
func AdvantagesJSONL(r io.Reader, w io.Writer, normalise Normaliser) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		reply, err := answerLine(lines.Bytes(), normalise)
		if err != nil {
			reply = map[string]error{"error": asRefusal(err)}
		}
		if err := encoder.Encode(reply); err != nil {
			return fmt.Errorf("mgrpo: answer to line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("mgrpo: reading groups (lines of at most %d MiB): %w", maxLine>>20, err)
	}
	return out.Flush()
}

func answerLine(line []byte, normalise Normaliser) (any, error) {
	var q request
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&q); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, &Refusal{Code: MalformedInput, Message: "more than one value on the line"}
	}
	if q.Groups != nil {
		return q.advantages(normalise)
	}
	return q.alignment()
}

func (q request) advantages(normalise Normaliser) (any, error) {
	convention, err := parseConvention(q.Convention)
	if err != nil {
		return nil, err
	}
	groups := make([]RewardGroup, len(q.Groups))
	for i, g := range q.Groups {
		groups[i] = RewardGroup{Rewards: floats(g.Rewards), Weights: floats(g.Weights)}
	}
	normalised, err := normalise(convention, groups)
	if err != nil {
		return nil, err
	}
	replies := make([]groupReply, len(normalised))
	for i, g := range normalised {
		replies[i] = groupReply{Advantage: make([]Number, len(g.Advantage)), Degenerate: g.Degenerate, Empty: g.Empty}
		for k, a := range g.Advantage {
			replies[i].Advantage[k] = Number(a)
		}
		if !g.Empty {
			replies[i].Mean, replies[i].Std = new(Number(g.Mean)), new(Number(g.Std))
		}
	}
	return map[string]any{"groups": replies}, nil
}

func (q request) alignment() (any, error) {
	if q.RunSeed == nil || q.Query == nil || q.Rollout == nil || q.Agent == nil || q.D == nil || q.DK == nil {
		return nil, &Refusal{Code: MalformedInput, Message: `needs "groups", or all of "run_seed", "query", "rollout", "agent", "d", "d_k"`}
	}
	const most = 1 << 20
	for _, f := range []struct {
		name       string
		value, low int
	}{{"rollout", *q.Rollout, 0}, {"d", *q.D, 1}, {"d_k", *q.DK, 0}} {
		if f.value < f.low || f.value > most {
			return nil, &Refusal{Code: MalformedInput, Field: f.name, Message: fmt.Sprintf("must be from %d to %d", f.low, most)}
		}
	}
	multiplicity, draws := Draw(AlignKey(uint64(*q.RunSeed), *q.Query, *q.Rollout, *q.Agent), *q.D, *q.DK)
	return alignReply{multiplicity, draws}, nil
}

func parseConvention(raw json.RawMessage) (Convention, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return DefaultConvention(), nil
	}
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return ConventionByName(name)
	}
	var c Convention
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return c, &Refusal{Code: MalformedInput, Field: "convention", Message: err.Error()}
	}
	return c, c.Validate()
}

func asRefusal(err error) *Refusal {
	if r, ok := err.(*Refusal); ok {
		return r
	}
	return &Refusal{Code: MalformedInput, Message: err.Error()}
}

func floats(numbers []Number) []float64 {
	if numbers == nil {
		return nil
	}
	out := make([]float64, len(numbers))
	for i, n := range numbers {
		out[i] = float64(n)
	}
	return out
}
