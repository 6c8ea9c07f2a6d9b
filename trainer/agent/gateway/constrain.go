package gateway

import (
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/grammar"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// constraint returns the constraint on a request's reply, or nil if the request does not ask for a form. In training it
// always returns nil, because the policy must learn to produce the requested form.
func (a *AgentServer) constraint(r *chatRequest, d *dialect, rules Rules) (policy.Constraint, error) {
	if !rules.Free {
		return nil, nil
	}
	form, err := r.form(d, a.Tokenizer)
	if form == nil || err != nil {
		return nil, err
	}
	if !policy.Constrains(a.Policy) {
		return nil, refuse(400, "invalid_request", "response_format and tool_choice: mgrpo cannot constrain the engine that samples for %s: leave "+
			"them out and check the reply", a.Name)
	}
	m, err := a.matcher(form, d.Stops().IDs)
	if err != nil {
		if r.ToolChoice.mode == "required" {
			return nil, invalid("tools", "the functions' parameters: %v", err)
		}
		return nil, invalid("response_format", "%v", err)
	}
	c := &constraint{template: r.template(d), tokens: a.Tokenizer, matcher: m, mask: make([]int32, grammar.Words(a.Tokenizer.VocabSize())), open: -1}
	switch first := c.template.Partial("x", false); {
	case first.Thought:
	case first.Thinking != "":
		c.thinks = true
	default:
		if ids := a.Tokenizer.Encode(thinkOpen); len(ids) == 1 {
			c.open = ids[0]
		}
	}
	for i := range c.mask {
		c.mask[i] = -1
	}
	for _, id := range d.Stops().IDs {
		c.mask[id/32] &^= 1 << (id % 32)
	}
	c.anything, c.mask = c.mask, slices.Clone(c.mask)
	return c, nil
}

const thinkOpen = "<think>"

// constraint restricts a turn to a grammar, once the turn's thinking has ended.
type constraint struct {
	template *agent.Template
	tokens   *tokenizer.Tokenizer
	matcher  *grammar.Matcher
	mask     []int32
	anything []int32         // all tokens except those that end a turn
	open     int32           // the token that begins thinking, while it is still allowed; -1: not allowed
	thinks   bool            // the turn is inside its thinking
	thinking strings.Builder // text of the thinking
}

func (c *constraint) Allowed() ([]int32, error) {
	if c.thinks {
		return c.anything, nil
	}
	err := c.matcher.Allowed(c.mask)
	if c.open >= 0 {
		c.mask[c.open/32] |= 1 << (c.open % 32)
	}
	return c.mask, err
}

func (c *constraint) Accept(id int32) error {
	begins := id == c.open
	c.open = -1
	if !c.thinks && !begins {
		return c.matcher.Accept(id)
	}
	c.thinking.Write(c.tokens.TokenBytes(id))
	c.thinks = !c.template.Partial(c.thinking.String(), false).Thought
	return nil
}
