package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/grammar"
)

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
