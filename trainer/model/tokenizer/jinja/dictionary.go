package jinja

import (
	"errors"
	"fmt"
	"iter"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// A dictionary is an ordered.Object, whose keys are strings, or an ordered.Dict.
type dictionary interface {
	Len() int
	pairs() iter.Seq2[any, any]
	get(r *renderer, key any) (v any, found bool, err error)
}

// dictionaryOf returns a value as a dictionary; ok is false for other values.
func dictionaryOf(v any) (d dictionary, ok bool) {
	switch v := v.(type) {
	case *ordered.Object:
		return object{v}, true
	case *ordered.Dict:
		return dict{v}, true
	}
	return nil, false
}

type object struct{ *ordered.Object }

func (o object) pairs() iter.Seq2[any, any] {
	return func(yield func(k, v any) bool) {
		for k, v := range o.All() {
			if !yield(k, v) {
				return
			}
		}
	}
}

func (o object) get(r *renderer, key any) (v any, found bool, err error) {
	if name, ok := text(key); ok {
		v, found = o.Get(name)
		err = r.spend(len(name) / 64)
	}
	return v, found, err
}

// dict is a dictionary with keys that are not all strings, which a template wrote. Keys that are equal in Python, such as 1 and true,
// are the same key.
type dict struct{ *ordered.Dict }

func (d dict) Len() int { return len(d.Keys) }

func (d dict) pairs() iter.Seq2[any, any] {
	return func(yield func(k, v any) bool) {
		for i, k := range d.Keys {
			if !yield(k, d.Values[i]) {
				return
			}
		}
	}
}

func (d dict) get(r *renderer, key any) (v any, found bool, err error) {
	i, err := d.index(r, key)
	if err != nil || i < 0 {
		return nil, false, err
	}
	return d.Values[i], true, nil
}

func (d dict) index(r *renderer, key any) (int, error) {
	for i, k := range d.Keys {
		if same, err := r.equal(k, key); err != nil || same {
			return i, err
		}
	}
	return -1, nil
}

func (d dict) set(r *renderer, key, value any) error {
	switch key.(type) {
	case nil, string, markup, bool, int64, float64:
	default:
		return fmt.Errorf("a dictionary's key of type %s is not supported", typeName(key))
	}
	i, err := d.index(r, key)
	switch {
	case err != nil:
		return err
	case i >= 0:
		d.Values[i] = value
	default:
		d.Keys, d.Values = append(d.Keys, key), append(d.Values, value)
	}
	return nil
}

func (n *dictOf) eval(r *renderer, s *scope) (any, error) {
	d, o := dict{&ordered.Dict{}}, &ordered.Object{} // o has the entries as long as all keys are strings
	for i := range n.keys {
		k, err := r.eval(n.keys[i], s)
		if err != nil {
			return nil, err
		}
		v, err := r.eval(n.values[i], s)
		if err != nil {
			return nil, err
		}
		key, ok := text(k)
		switch {
		case o != nil && ok:
			o.Set(key, v)
			continue
		case o != nil:
			for k, v := range o.All() {
				d.Keys, d.Values = append(d.Keys, k), append(d.Values, v)
			}
			o = nil
		}
		if err := d.set(r, k, v); err != nil {
			return nil, err
		}
	}
	if o != nil {
		return o, r.spend(64 * o.Len())
	}
	return d.Dict, r.spend(64 * d.Len())
}

// viewMethod makes keys, values and items. Their results cannot be indexed.
func viewMethod(name string, items func(r *renderer, d dictionary) ([]any, error)) methodOf[dictionary] {
	return withArity(0, 0, func(r *renderer, d dictionary, args arguments) (any, error) {
		list, err := items(r, d)
		return ordered.View{Name: "dict_" + name, Items: list}, err
	})
}

var dictMethods = map[string]methodOf[dictionary]{
	"keys":   viewMethod("keys", dictKeys),
	"values": viewMethod("values", dictValues),
	"items":  viewMethod("items", dictItems),
	"get": withArity(1, 2, func(r *renderer, d dictionary, args arguments) (any, error) {
		v, found, err := d.get(r, args.at(0, "key", nil))
		if err != nil || found {
			return v, err
		}
		return args.at(1, "default", nil), nil
	}),
	"copy": func(r *renderer, d dictionary, args arguments) (any, error) {
		if o, ok := d.(object); ok {
			return o.Object, nil
		}
		return d.(dict).Dict, nil
	},
	"update": refuse[dictionary], "pop": refuse[dictionary], "popitem": refuse[dictionary],
	"clear": refuse[dictionary], "setdefault": refuse[dictionary],
}

func dictKeys(r *renderer, d dictionary) ([]any, error) {
	keys := make([]any, 0, d.Len())
	for k := range d.pairs() {
		keys = append(keys, k)
	}
	return keys, r.spend(16 * len(keys))
}

func dictValues(r *renderer, d dictionary) ([]any, error) {
	values := make([]any, 0, d.Len())
	for _, v := range d.pairs() {
		values = append(values, v)
	}
	return values, r.spend(16 * len(values))
}

// dictItems returns the pairs of a dictionary.
func dictItems(r *renderer, d dictionary) ([]any, error) {
	items := make([]any, 0, d.Len())
	for k, v := range d.pairs() {
		items = append(items, ordered.Tuple{k, v})
	}
	return items, r.spend(64 * len(items))
}

func itemsFilter(r *renderer, v any, args arguments) (any, error) {
	if _, missing := v.(undefined); missing {
		return []any{}, nil
	}
	d, ok := dictionaryOf(v)
	if !ok {
		return nil, errors.New("can only get item pairs from a mapping")
	}
	return dictItems(r, d)
}

// dictsortFilter sorts pairs by key or value. It ignores the case of strings unless case_sensitive is true.
func dictsortFilter(r *renderer, v any, args arguments) (any, error) {
	d, ok := dictionaryOf(v)
	if !ok {
		return nil, fmt.Errorf("want a dictionary, have %s", typeName(v))
	}
	pairs, err := dictItems(r, d)
	if err != nil {
		return nil, err
	}
	by := int64(0)
	if args.at(1, "by", "key") == "value" {
		by = 1
	}
	return r.sort(pairs, by, truth(args.at(0, "case_sensitive", false)), truth(args.at(2, "reverse", false)))
}
