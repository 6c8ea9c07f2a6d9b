package mgrpo

import (
	"fmt"
	"strings"
)

// Code is the reason for refusing an input. Inputs are never repaired: a refused batch changes no weights.
type Code string

// The codes, in the order in which a loss is checked. The last ones are for rewards and for other input.
const (
	BadWeight        Code = "bad_weight"
	EmptyBatch       Code = "empty_batch"
	NonFiniteInput   Code = "non_finite_input"
	MissingInput     Code = "missing_input"
	PositiveLogProb  Code = "positive_logprob"
	RatioOverflow    Code = "ratio_overflow"
	NonFiniteValue   Code = "non_finite_value"
	NonFiniteReward  Code = "non_finite_reward"
	RewardOutOfRange Code = "reward_out_of_range"
	MissingReward    Code = "missing_reward"
	MalformedInput   Code = "malformed_input"
)

// Refusal is the error for an input that must not be trained on. Positions that do not apply are nil.
type Refusal struct {
	Code       Code   `json:"code"`
	Field      string `json:"field,omitempty"`
	Group      *int   `json:"group,omitempty"`      // index of the group
	Index      *int   `json:"index,omitempty"`      // member of a group
	Trajectory *int   `json:"trajectory,omitempty"` // position in a batch
	Token      *int   `json:"token,omitempty"`      // packed token index
	Count      *int   `json:"count,omitempty"`      // number of bad values
	Message    string `json:"message,omitempty"`
}

// Error returns the code and every known position.
func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString("mgrpo: " + string(r.Code))
	if r.Field != "" {
		b.WriteString(": " + r.Field)
	}
	for _, p := range []struct {
		name string
		at   *int
	}{{"group", r.Group}, {"member", r.Index}, {"trajectory", r.Trajectory}, {"token", r.Token}, {"count", r.Count}} {
		if p.at != nil {
			fmt.Fprintf(&b, ", %s %d", p.name, *p.at)
		}
	}
	if r.Message != "" {
		b.WriteString(": " + r.Message)
	}
	return b.String()
}
