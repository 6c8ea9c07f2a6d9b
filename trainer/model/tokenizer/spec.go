package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/jsontokens"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/format"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// Further limits on tokenizer.json.
const (
	maxFileSize = 64 << 20 // bytes of a file
	maxAdded    = 1 << 16
)

// spec is the parsed tokenizer.json, before the tokenizer is built.
type spec struct {
	normalizer, preTokenizer, postProcessor, decoder any

	added   []addedToken
	kind    string // "BPE", "WordLevel", …
	vocab   map[string]int32
	merges  [][2]string // nil: absent
	options *ordered.Object
}

func readSpec(data []byte) (*spec, error) {
	r := jsontokens.New(bytes.NewReader(data), ordered.Maker{})
	r.MaxDepth, r.MaxValues, r.UniqueKeys = ordered.MaxDepth, ordered.MaxValues, true
	s := &spec{}
	err := r.Object(func(key string) (err error) {
		switch key {
		case "added_tokens":
			s.added, err = readAdded(r)
		case "normalizer":
			s.normalizer, err = r.Value()
		case "pre_tokenizer":
			s.preTokenizer, err = r.Value()
		case "post_processor":
			s.postProcessor, err = r.Value()
		case "decoder":
			s.decoder, err = r.Value()
		case "model":
			err = s.readModel(r)
		case "version", "truncation", "padding": // settings for batches, which the tokenizer ignores
			_, err = r.Value()
		default:
			err = errors.New("unknown key")
		}
		return withLocation(key, err)
	})
	if err != nil {
		return nil, err
	}
	if s.options == nil {
		return nil, errors.New("model is missing")
	}
	return s, r.End()
}

func (s *spec) readModel(r *jsontokens.Reader) error {
	s.options = &ordered.Object{}
	err := r.Object(func(key string) (err error) {
		switch key {
		case "vocab":
			err = s.readVocab(r)
		case "merges":
			err = s.readMerges(r)
		default:
			var v any
			v, err = r.Value()
			s.options.Set(key, v)
			if kind, ok := v.(string); ok && key == "type" && kind != "BPE" && kind != "WordLevel" { // its vocabulary can have another form
				err = errKind(kind)
			}
		}
		return withLocation(key, err)
	})
	if err != nil {
		return err
	}
	if len(s.vocab) == 0 {
		return errors.New("the vocabulary is empty or absent")
	}
	kind, found := s.options.Get("type")
	s.kind, _ = kind.(string)
	if !found && s.merges != nil { // old files do not have this key
		s.kind = "BPE"
	}
	return nil
}

func errKind(kind string) error { return fmt.Errorf("%q is not supported: use BPE or WordLevel", kind) }

func (s *spec) readVocab(r *jsontokens.Reader) error {
	s.vocab = map[string]int32{}
	return r.Object(func(token string) error {
		id, err := r.Int(format.MaxID - 1)
		s.vocab[token] = int32(id)
		return withLocation(fmt.Sprintf("%.60q", token), err)
	})
}

// readMerges reads merges in both forms: "a b" and ["a", "b"].
func (s *spec) readMerges(r *jsontokens.Reader) error {
	s.merges = [][2]string{}
	return r.Array(func() error {
		if len(s.merges) == format.MaxMerges {
			return fmt.Errorf("more than %d merges", format.MaxMerges)
		}
		var pair []string
		text, isString, err := r.StringOrArray(func() error {
			part, err := r.String()
			pair = append(pair, part)
			return err
		})
		if err != nil {
			return err
		}
		if isString {
			pair = strings.Split(text, " ")
		}
		if len(pair) != 2 {
			return fmt.Errorf("merge %d is not a pair of tokens", len(s.merges))
		}
		s.merges = append(s.merges, [2]string{pair[0], pair[1]})
		return nil
	})
}

func readAdded(r *jsontokens.Reader) ([]addedToken, error) {
	var list []addedToken
	err := r.Array(func() error {
		if len(list) == maxAdded {
			return fmt.Errorf("more than %d", maxAdded)
		}
		v, err := r.Value()
		if err != nil {
			return err
		}
		t, err := parseAdded(v)
		list = append(list, t)
		return withLocation(fmt.Sprintf("entry %d", len(list)-1), err)
	})
	return list, err
}

func parseAdded(v any) (addedToken, error) {
	t := addedToken{id: NoID, normalized: true}
	o, ok := v.(*ordered.Object)
	if !ok {
		return t, fmt.Errorf("want an object, have %s", ordered.TypeName(v))
	}
	flags := map[string]*bool{"single_word": &t.singleWord, "lstrip": &t.lstrip, "rstrip": &t.rstrip,
		"normalized": &t.normalized, "special": &t.special}
	if special, _ := o.Get("special"); special == true {
		t.normalized = false
	}
	for key, v := range o.All() {
		switch key {
		case "id":
			id, ok := v.(int64)
			if !ok || id < 0 || id >= format.MaxID {
				return t, fmt.Errorf("id %v is not an integer between 0 and %d", v, format.MaxID-1)
			}
			t.id = int32(id)
		case "content":
			if t.content, ok = v.(string); !ok || len(t.content) > format.MaxTokenText {
				return t, fmt.Errorf("content is not a string of at most %d bytes", format.MaxTokenText)
			}
		case "__type":
		default:
			flag, known := flags[key]
			if !known {
				return t, fmt.Errorf("unknown key %q", key)
			}
			if *flag, ok = v.(bool); !ok {
				return t, fmt.Errorf("%s is not true or false", key)
			}
		}
	}
	return t, nil
}

// withLocation adds a place to an error.
func withLocation(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", where, err)
}
