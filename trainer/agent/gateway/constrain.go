package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
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
		if ids := a.Tokenizer.Encode(agent.ThinkingOpen(c.template)); len(ids) == 1 {
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

// maxGrammars is the number of compiled grammars that an agent caches.
const maxGrammars = 64

// matcher compiles a form, or returns a matcher of the cached grammar.
func (a *AgentServer) matcher(form json.RawMessage, stops []int32) (*grammar.Matcher, error) {
	a.grammars.Lock()
	defer a.grammars.Unlock()
	if a.vocabulary == nil {
		tokens := make([][]byte, a.Tokenizer.VocabSize())
		for id := range tokens {
			switch text := a.Tokenizer.TokenBytes(int32(id)); {
			case slices.Contains(stops, int32(id)): // stop tokens have no text
			case a.Tokenizer.Special(int32(id)):
				tokens[id] = []byte(markOf(int32(id)))
			case !bytes.Contains(text, []byte(markByte)):
				tokens[id] = text
			}
		}
		v, err := grammar.NewVocabulary(tokens, stops)
		if err != nil {
			return nil, err
		}
		a.vocabulary, a.compiled = v, map[string]*grammar.Grammar{}
	}
	g := a.compiled[string(form)]
	if g == nil {
		var err error
		if g, err = a.vocabulary.Compile(form); err != nil {
			return nil, err
		}
		if len(a.compiled) >= maxGrammars {
			clear(a.compiled)
		}
		a.compiled[string(form)] = g
	}
	return g.Matcher()
}

// markByte begins and ends the name of a special token in a grammar. The special token's own text must not match
// ordinary text. No JSON contains this byte, and tokens with it are never allowed.
const markByte = "\x01"

func markOf(special int32) string { return fmt.Sprintf("%s%d%s", markByte, special, markByte) }
