package arch

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/trainer/internal/strictjson"
)

// SpecialTokens holds the ids of a model's special tokens.
type SpecialTokens struct {
	BOS []int32 // at most one id
	EOS []int32 // ids that end generation; from generation_config.json if it has any
	Pad []int32 // at most one id
}

// tokenKey is a key of config.json and generation_config.json that has at most max token ids.
type tokenKey struct {
	key  string
	gguf []string // names of the tokens in keys of GGUF metadata
	ids  *[]int32
	max  int
}

func (s *SpecialTokens) keys() []tokenKey {
	return []tokenKey{
		{"bos_token_id", []string{"bos"}, &s.BOS, 1},
		{"eos_token_id", []string{"eos", "eot"}, &s.EOS, 64},
		{"pad_token_id", []string{"padding"}, &s.Pad, 1},
	}
}

// padding reports whether the key has the id of padding.
func (t tokenKey) padding() bool { return t.key == "pad_token_id" }

// inside reads ids, without those outside the vocabulary. note is a sentence about the latter; "": there are none.
func (t tokenKey) inside(k *keys, vocab int) (inside []int32, note string) {
	found := k.ids(t.key)
	inside = insideVocabulary(found, vocab)
	if len(inside) < len(found) {
		note = fmt.Sprintf("%s has ids %s: those outside of the vocabulary of %d are ignored", t.key, strictjson.Brief(fmt.Sprint(found)), vocab)
	}
	return inside, note
}

func insideVocabulary(ids []int32, vocab int) []int32 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return int(id) >= vocab })
}

// read reads ids that are inside the vocabulary. If the key is absent, they are the family's. An id of padding outside the vocabulary is
// kept, and Validate refuses it: transformers does not build an embedding with such an id.
func (t tokenKey) read(k *keys, vocab int) []int32 {
	switch {
	case !k.has(t.key):
		return insideVocabulary(*t.ids, vocab)
	case t.padding():
		return k.ids(t.key)
	}
	ids, _ := t.inside(k, vocab)
	return ids
}

func (s *SpecialTokens) validate(vocab int) error {
	for _, t := range s.keys() {
		if len(*t.ids) > t.max {
			return fmt.Errorf("%s lists %d ids: at most %d", t.key, len(*t.ids), t.max)
		}
		for _, id := range *t.ids {
			if id < 0 || int(id) >= vocab {
				return fmt.Errorf("%s %d is outside the vocabulary of %d", t.key, id, vocab)
			}
		}
	}
	return nil
}

// ReadGeneration reads the token ids of a generation_config.json. They replace the ids of config.json. Ids outside the
// vocabulary of the given size are ignored; notes has a sentence for each key with such ids.
func (s *SpecialTokens) ReadGeneration(data []byte, vocab int) (notes []string, err error) {
	object, err := strictjson.Object(data)
	if err != nil {
		return nil, err
	}
	k := &keys{values: object}
	for _, t := range s.keys() {
		inside, note := t.inside(k, vocab)
		if note != "" {
			notes = append(notes, note)
		}
		if len(inside) > 0 {
			*t.ids = inside
		}
	}
	return notes, errors.Join(k.err, s.validate(vocab))
}

// GenerationJSON returns a generation_config.json with the ids.
func (s SpecialTokens) GenerationJSON() ([]byte, error) {
	object := map[string]any{"_from_model_config": true}
	for _, t := range s.keys() {
		if len(*t.ids) > 0 {
			object[t.key] = oneOrList(*t.ids)
		}
	}
	return indented(object)
}

// oneOrList writes token ids as transformers does: null, one number, or a list.
func oneOrList(ids []int32) any {
	switch len(ids) {
	case 0:
		return nil
	case 1:
		return ids[0]
	}
	return ids
}
