package tokenizer

import (
	"fmt"
	"slices"
)

// vocabulary is the table of tokens.
type vocabulary struct {
	tokens []token          // by id
	ids    map[string]int32 // by token string, including added tokens
}

type token struct {
	text    string // the token in the vocabulary
	bytes   string // bytes that the token adds to a text, before the decoder's steps on the whole text
	isByte  bool   // bytes is a single byte of a character that neighbouring tokens complete
	present bool
	special bool
	added   bool
}

// known reports whether an id has a token.
func (v *vocabulary) known(id int32) bool {
	return id >= 0 && int(id) < len(v.tokens) && v.tokens[id].present
}

// newVocabulary makes the table from the vocabulary of tokenizer.json and all added tokens, which it also returns.
func newVocabulary(s *spec, c *config) (v vocabulary, added []addedToken, err error) {
	size := 0
	for _, id := range s.vocab {
		size = max(size, int(id)+1)
	}
	for _, a := range s.added {
		size = max(size, int(a.id)+1)
	}
	if limit := 4*(len(s.vocab)+len(s.added)) + 1024; size > limit {
		return v, nil, fmt.Errorf("the largest id is %d but there are %d tokens", size-1, len(s.vocab)+len(s.added))
	}
	v = vocabulary{make([]token, size), make(map[string]int32, len(s.vocab)+len(s.added))}
	for text, id := range s.vocab {
		if err := v.set(text, id); err != nil {
			return v, nil, withLocation("vocab", err)
		}
	}
	added, err = v.add(s.added, c)
	return v, added, withLocation("added_tokens", err)
}

func (v *vocabulary) set(text string, id int32) error {
	if v.tokens[id].present {
		a, b := v.tokens[id].text, text
		return fmt.Errorf("%.60q and %.60q have the same id %d", min(a, b), max(a, b), id)
	}
	v.tokens[id] = token{text: text, bytes: text, present: true}
	v.ids[text] = id
	return nil
}

// add registers the added tokens of tokenizer.json, whose flags tokenizer_config.json may
// change, and those that only tokenizer_config.json has. It also registers the named special tokens,
// which are added tokens even if they are only in the vocabulary. transformers does the same.
func (v *vocabulary) add(list []addedToken, c *config) ([]addedToken, error) {
	list = slices.Clone(list)
	place := map[string]int{}
	for i, a := range list {
		if _, again := place[a.content]; again {
			return nil, fmt.Errorf("%.60q occurs twice", a.content)
		}
		if a.id == NoID {
			return nil, fmt.Errorf("%.60q has no id", a.content)
		}
		place[a.content] = i
	}
	for _, a := range c.added {
		i, ok := place[a.content]
		switch {
		case !ok:
			place[a.content] = len(list)
			list = append(list, a)
		case list[i].id != a.id:
			return nil, fmt.Errorf("%.60q has the id %d here and %d in %s", a.content, list[i].id, a.id, fileConfig)
		default:
			list[i] = a
		}
	}
	for _, a := range c.legacy {
		if _, ok := place[a.content]; !ok {
			place[a.content] = len(list)
			list = append(list, a)
		}
	}
	next := int32(len(v.tokens)) // larger than every id so far
	for _, a := range list {
		next = max(next, a.id+1)
	}
	for _, text := range c.specials() {
		if i, ok := place[text]; ok {
			list[i].special = true
			continue
		}
		id, ok := v.ids[text]
		if !ok {
			id = next
			next++
		}
		place[text] = len(list)
		list = append(list, addedToken{id: id, content: text, special: true})
	}
	for _, a := range list {
		if err := v.register(a); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (v *vocabulary) register(a addedToken) error {
	id, known := v.ids[a.content]
	switch more := int(a.id) + 1 - len(v.tokens); {
	case known && id != a.id:
		return fmt.Errorf("%.60q has the id %d here and %d in the vocabulary", a.content, a.id, id)
	case more > maxAdded+1:
		return fmt.Errorf("%.60q has the id %d, far beyond the others", a.content, a.id)
	case more > 0: // only in tokenizer_config.json
		v.tokens = append(v.tokens, make([]token, more)...)
	}
	if !known {
		if err := v.set(a.content, a.id); err != nil {
			return err
		}
	}
	v.tokens[a.id].special, v.tokens[a.id].added = a.special, true
	return nil
}

// mapBytes replaces the bytes of each token by the result of f.
func (v *vocabulary) mapBytes(f func(string) string) {
	for i := range v.tokens {
		if v.tokens[i].present {
			v.tokens[i].bytes = f(v.tokens[i].bytes)
		}
	}
}
