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

// maxGrammars is the number of compiled grammars that an agent caches.
const maxGrammars = 64

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
		return nil, refuse(400, "invalid_request", "response_format and tool_choice: mgrpo cannot constrain the engine that samples for %s: leave them out and check the reply", a.Name)
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

// form returns the structural tag of the replies that a request asks for, or nil if any reply is allowed. If a request
// cannot be enforced, the error names its field.
func (r *chatRequest) form(d *dialect, tok *tokenizer.Tokenizer) (json.RawMessage, error) {
	schema := r.ResponseFormat.schema()
	if r.ToolChoice.mode != "required" && schema == nil {
		return nil, nil
	}
	calls, err := r.callForm(d, tok)
	if err != nil {
		field := "tool_choice"
		if schema != nil {
			field = "response_format"
		}
		return nil, invalid(field, "%v; leave it out", err)
	}
	var one, content any
	if schema != nil {
		n, err := parsed(schema)
		if err == nil {
			content, err = jsonForm(n, "")
		}
		if err != nil {
			return nil, invalid("response_format", "%v", err)
		}
	}
	switch {
	case r.ToolChoice.mode == "required":
		one = calls
	case calls == nil:
		one = content
	default:
		one = object{"type": "or", "elements": []any{content, calls}}
	}
	if first := r.template(d).Partial("x", false); !first.Thought { // empty lines follow the thinking
		one = object{"type": "sequence", "elements": []any{object{"type": "regex", "pattern": "\n{0,2}"}, one}}
	}
	tag, err := json.Marshal(object{"type": "structural_tag", "format": one})
	if err != nil {
		panic(err) // cannot happen: all parts are valid JSON
	}
	return tag, nil
}

type object = map[string]any

// jsonForm returns the form of JSON with a schema. It allows as much white space between its parts as people usually
// write. If end is set, no text in the JSON contains it.
func jsonForm(schema node, end string) (object, error) {
	const space = 16
	exact, err := exactSchema(schema, end)
	form := object{"type": "json_schema", "json_schema": exact, "max_whitespace_cnt": space}
	if end != "" {
		form["excludes"] = []string{end}
	}
	return form, err
}

// callForm returns the form of calls as the template prints them: one call, or several if the template prints them one
// after another. It returns nil if there are no functions.
func (r *chatRequest) callForm(d *dialect, tok *tokenizer.Tokenizer) (any, error) {
	var calls []any
	several, between := !r.oneCall() && r.ToolChoice.name == "", ""
	for _, raw := range r.Tools {
		f := functionOf(raw)
		if r.ToolChoice.mode == "none" || r.ToolChoice.name != "" && r.ToolChoice.name != f.Function.Name {
			continue
		}
		parameters := f.Function.Parameters
		if len(parameters) == 0 || string(parameters) == "null" {
			parameters = json.RawMessage(`{"type":"object"}`)
		}
		form, err := d.CallForm(f.Function.Name)
		if err != nil {
			return nil, err
		}
		several, between = several && form.Several, form.Between
		call, err := oneCallForm(form, parameters, tok)
		if err != nil {
			return nil, fmt.Errorf("the parameters of %s: %w", f.Function.Name, err)
		}
		calls = append(calls, call)
	}
	if calls == nil {
		return nil, nil
	}
	var one any = object{"type": "or", "elements": calls}
	if several {
		more := sequence(append(constant(tok, between), one))
		one = sequence([]any{one, object{"type": "star", "content": more}})
	}
	return one, nil
}

// oneCallForm returns a call of a function with these parameters.
func oneCallForm(form agent.CallForm, parameters json.RawMessage, tok *tokenizer.Tokenizer) (object, error) {
	schema, err := parsed(parameters)
	if err != nil {
		return nil, err
	}
	if form.Pairs != nil {
		f := pairsForm{Pairs: form.Pairs, tokens: tok, root: schema}
		return f.arguments(form.Before, form.After)
	}
	arguments, err := jsonForm(schema, "")
	return sequence(slices.Concat(constant(tok, form.Before), []any{arguments}, constant(tok, form.After))), err
}

func sequence(elements []any) object { return object{"type": "sequence", "elements": elements} }

// constant returns a text as elements of a sequence. Names of special tokens replace the special tokens.
func constant(tok *tokenizer.Tokenizer, text string) []any {
	var marked strings.Builder
	for _, id := range tok.Encode(text) {
		if !tok.Special(id) {
			continue
		}
		before, after, _ := strings.Cut(text, tok.Token(id))
		marked.WriteString(before + markOf(id))
		text = after
	}
	if marked.WriteString(text); marked.Len() == 0 {
		return nil
	}
	return []any{object{"type": "const_string", "value": marked.String()}}
}
