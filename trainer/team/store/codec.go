package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// Limits of values in the store.
const (
	MaxText  = 1 << 20  // bytes of one text: a sub-task, an answer
	maxID    = 512      // bytes of a query id
	maxValue = 16 << 20 // bytes of one encoded value
)

// encode encodes a value canonically: equal values have equal bytes. So a script can distinguish a repeated write from a
// conflicting one.
func encode(v any) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	if b.Len() > maxValue {
		return "", fmt.Errorf("%d bytes; the limit is %d", b.Len(), maxValue)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// checker is a value that can check its own bounds.
type checker interface{ check() error }

// checkAndEncode checks a value and `others`, and encodes the value for a write. `what` names the value in errors.
func checkAndEncode(what string, v checker, others ...checker) (text string, err error) {
	for _, c := range append(others, v) {
		err = errors.Join(err, c.check())
	}
	if err == nil {
		text, err = encode(v)
	}
	if err != nil {
		return "", fmt.Errorf("store: %s: %w", what, err)
	}
	return text, nil
}

// decode reads a value that may come from any program. Unknown fields, text after the value and values out of bounds are a
// MalformedError.
func decode[T any, P interface {
	*T
	checker
}](key, text string) (T, error) {
	var v T
	bad := func(err error) (T, error) {
		var zero T
		return zero, &MalformedError{Key: key, Msg: err.Error()}
	}
	if len(text) > maxValue {
		return bad(fmt.Errorf("%d bytes", len(text)))
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return bad(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad(errors.New("text after the value"))
	}
	if err := P(&v).check(); err != nil {
		return bad(err)
	}
	return v, nil
}

func (p *Phase) check() error {
	if !slices.Contains([]string{"step", "eval", "checkpoint"}, p.Kind) || p.Step < 0 {
		return fmt.Errorf("%q is not a phase", p.String())
	}
	return nil
}

// phaseEnd is the value that marks the end of a phase.
type phaseEnd bool

func (*phaseEnd) check() error { return nil }

func checkID(query string, numbers ...int) error {
	if query == "" || len(query) > maxID {
		return fmt.Errorf("a query id of %d bytes; it must have 1 to %d", len(query), maxID)
	}
	for _, n := range numbers {
		if n < 0 || n > math.MaxInt32 {
			return fmt.Errorf("%d is not an index", n)
		}
	}
	return nil
}

func checkText(what, s string) error {
	if len(s) > MaxText {
		return fmt.Errorf("%s of %d bytes; the limit is %d", what, len(s), MaxText)
	}
	return nil
}

func checkName(what, s string) error {
	if s == "" || len(s) > 64 || strings.IndexFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_'
	}) >= 0 {
		return fmt.Errorf("%q is not the name of %s: 1 to 64 letters, digits, dashes and underscores", s, what)
	}
	return nil
}

func (v *Invocation) check() error {
	err := errors.Join(v.Phase.check(), checkID(v.Query, v.Rollout, v.Index, v.Repeat), checkName("an agent", v.Agent), checkText("a sub-task", v.Task))
	if v.End == nil {
		return err
	}
	for _, score := range slices.Concat(v.End.Scores, slices.Collect(maps.Values(v.End.ByID))) {
		if !(score >= 0 && score <= 1) {
			err = errors.Join(err, fmt.Errorf("a score of %v; want 0 to 1", score))
		}
	}
	return err
}

func (r *Result) check() error {
	return errors.Join(checkText("an answer", r.Text), checkText("a reason", r.Failed), checkID("-", r.Calls, r.Tokens))
}

func (o *Outcome) check() error {
	err := errors.Join(checkID(o.Query, o.Rollout, o.Tokens), checkText("an answer", o.Answer), checkText("a reason", o.Failed),
		checkText("a reason", o.Unscored))
	if !(o.Correct >= 0 && o.Correct <= 1) {
		err = errors.Join(err, fmt.Errorf("outcome %s: %v is not a score from 0 to 1; report the rollout as failed", o.ID(), o.Correct))
	}
	if math.IsNaN(o.Reward) || math.IsInf(o.Reward, 0) {
		err = errors.Join(err, fmt.Errorf("outcome %s: %v is not a reward; report the rollout as failed", o.ID(), o.Reward))
	}
	for agent, n := range o.Calls {
		err = errors.Join(err, checkName("an agent", agent), checkID(o.Query, n))
	}
	return errors.Join(err, o.checkWithout())
}

// checkWithout checks that Without has a score for each call of its agents.
func (o *Outcome) checkWithout() error {
	for agent, correct := range o.Without {
		if n, called := o.Calls[agent]; !called || len(correct) != n {
			return fmt.Errorf("outcome %s: %d scores without a call of %q, which has %d calls", o.ID(), len(correct), agent, n)
		}
		for i, c := range correct {
			if !(c >= 0 && c <= 1) {
				return fmt.Errorf("outcome %s: %v, without call %d of %s, is not a score from 0 to 1; report the rollout as failed", o.ID(), c, i, agent)
			}
		}
	}
	return nil
}

func (p *Plan) check() error {
	if p.Rollouts < 1 || p.Rollouts > math.MaxInt32 {
		return fmt.Errorf("%d rollouts per query are not allowed", p.Rollouts)
	}
	for i, q := range p.Queries {
		if err := checkID(q); err != nil {
			return fmt.Errorf("query %d: %w", i, err)
		}
	}
	sorted := slices.Sorted(slices.Values(p.Queries))
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			return fmt.Errorf("query %q is in the plan twice; a query that is visited again needs a new id", sorted[i])
		}
	}
	return nil
}

// agreement has the settings on which all workers of a run must agree, as they are stored.
type agreement struct {
	Protocol      int               `json:"protocol"`
	Agents        []string          `json:"agents"`
	Config        map[string]string `json:"config"`
	Deterministic bool              `json:"deterministic"`
}

func (a *agreement) check() error {
	if len(a.Agents) == 0 || len(a.Agents) > 1000 {
		return fmt.Errorf("%d agents", len(a.Agents))
	}
	for i, name := range a.Agents {
		if err := checkName("an agent", name); err != nil {
			return err
		}
		if slices.Contains(a.Agents[:i], name) {
			return fmt.Errorf("agent %s is listed twice", name)
		}
	}
	return nil
}

// differences lists the differences between two agreements. It returns "" if they are equal.
func (a *agreement) differences(other *agreement) string {
	var out []string
	if a.Protocol != other.Protocol {
		out = append(out, fmt.Sprintf("protocol version %d here, %d there", a.Protocol, other.Protocol))
	}
	if !slices.Equal(a.Agents, other.Agents) {
		out = append(out, fmt.Sprintf("agents %v here, %v there", a.Agents, other.Agents))
	}
	if a.Deterministic != other.Deterministic {
		out = append(out, fmt.Sprintf("deterministic: %v here, %v there", a.Deterministic, other.Deterministic))
	}
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a.Config)), maps.Keys(other.Config))
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		here, set := a.Config[k]
		there, setThere := other.Config[k]
		if set != setThere || here != there {
			out = append(out, fmt.Sprintf("%s: %s here, %s there", k, orAbsent(here, set), orAbsent(there, setThere)))
		}
	}
	return strings.Join(out, "; ")
}

func orAbsent(s string, present bool) string {
	if !present {
		return "absent"
	}
	return s
}
