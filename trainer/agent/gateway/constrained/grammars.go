package constrained

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/bindings/grammar"
	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// maxGrammars is the number of compiled grammars in a cache.
const maxGrammars = 64

// Grammars compiles structural tags for the tokens of one model, and caches the grammars. Several goroutines may use it at
// once.
type Grammars struct {
	tokens     *tokenizer.Tokenizer
	mu         sync.Mutex
	vocabulary *grammar.Vocabulary // nil until a reply is constrained
	compiled   map[string]*grammar.Grammar
}

// NewGrammars returns an empty cache.
func NewGrammars(tok *tokenizer.Tokenizer) *Grammars { return &Grammars{tokens: tok} }

// Constraint returns the constraint that restricts one turn to a structural tag, once the turn's thinking has ended.
// template reads the turn. Constraint returns an error if XGrammar cannot compile the tag.
func (g *Grammars) Constraint(tag json.RawMessage, template *agent.Template) (policy.Constraint, error) {
	stops := template.Stops().IDs
	m, err := g.matcher(tag, stops)
	if err != nil {
		return nil, err
	}
	c := &constraint{template: template, tokens: g.tokens, matcher: m, mask: make([]int32, grammar.Words(g.tokens.VocabSize())), open: -1}
	switch first := template.Partial("x", false); {
	case first.Thought:
	case first.Thinking != "":
		c.thinks = true
	default:
		if ids := g.tokens.Encode(agent.ThinkingOpen(template)); len(ids) == 1 {
			c.open = ids[0]
		}
	}
	for i := range c.mask {
		c.mask[i] = -1
	}
	for _, id := range stops {
		c.mask[id/32] &^= 1 << (id % 32)
	}
	c.anything, c.mask = c.mask, slices.Clone(c.mask)
	return c, nil
}

// matcher compiles a structural tag, or returns a matcher of the cached grammar.
func (g *Grammars) matcher(tag json.RawMessage, stops []int32) (*grammar.Matcher, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.vocabulary == nil {
		tokens := make([][]byte, g.tokens.VocabSize())
		for id := range tokens {
			switch text := g.tokens.TokenBytes(int32(id)); {
			case slices.Contains(stops, int32(id)): // stop tokens have no text
			case g.tokens.Special(int32(id)):
				tokens[id] = []byte(markOf(int32(id)))
			case !bytes.Contains(text, []byte(markByte)):
				tokens[id] = text
			}
		}
		v, err := grammar.NewVocabulary(tokens, stops)
		if err != nil {
			return nil, err
		}
		g.vocabulary, g.compiled = v, map[string]*grammar.Grammar{}
	}
	compiled := g.compiled[string(tag)]
	if compiled == nil {
		var err error
		if compiled, err = g.vocabulary.Compile(tag); err != nil {
			return nil, err
		}
		if len(g.compiled) >= maxGrammars {
			clear(g.compiled)
		}
		g.compiled[string(tag)] = compiled
	}
	return compiled.Matcher()
}

// markByte begins and ends the name of a special token in a grammar. The special token's own text must not match
// ordinary text. No JSON contains this byte, and tokens with it are never allowed.
const markByte = "\x01"

func markOf(special int32) string { return fmt.Sprintf("%s%d%s", markByte, special, markByte) }

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
