package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ofItems applies a filter to the items of any value that a for takes.
func ofItems(m methodOf[[]any]) methodOf[any] {
	return func(r *renderer, v any, args arguments) (any, error) {
		items, err := r.iterate(v)
		if err != nil {
			return nil, err
		}
		return m(r, items, args)
	}
}

func lengthFilter(r *renderer, v any, args arguments) (any, error) {
	n, err := length(v)
	if s, ok := text(v); ok {
		err = r.spend(len(s) / 64)
	}
	return int64(n), err
}

func listFilter(r *renderer, items []any, args arguments) (any, error) {
	return append([]any{}, items...), r.spend(16 * len(items))
}

// endFilter makes first and last.
func endFilter(last bool) methodOf[[]any] {
	return func(r *renderer, items []any, args arguments) (any, error) {
		switch {
		case len(items) == 0:
			return undefined{"the first or last item of an empty sequence"}, nil
		case last:
			return items[len(items)-1], nil
		}
		return items[0], nil
	}
}

func reverseFilter(r *renderer, v any, args arguments) (any, error) {
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	out := append([]any{}, items...)
	slices.Reverse(out)
	if _, ok := text(v); !ok {
		return &generator{out}, r.spend(16 * len(out))
	}
	parts := make([]string, len(out))
	for i, c := range out {
		parts[i] = c.(string)
	}
	return r.joinTexts(parts, "")
}

func sortFilter(r *renderer, items []any, args arguments) (any, error) {
	path, caseSensitive := args.at(2, "attribute", nil), truth(args.at(1, "case_sensitive", false))
	if names, ok := text(path); ok && strings.Contains(names, ",") {
		return nil, fmt.Errorf("several attributes (%s) are not supported", names)
	}
	return r.sort(items, path, caseSensitive, truth(args.at(0, "reverse", false)))
}

func (r *renderer) sort(items []any, path any, caseSensitive, descending bool) (any, error) {
	keys, err := r.keys(items, path, caseSensitive)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		if descending {
			i, j = j, i
		}
		if err != nil {
			return 0
		}
		var c int
		c, err = r.order(keys[i], keys[j])
		return c
	})
	out := make([]any, len(items))
	for to, from := range order {
		out[to] = items[from]
	}
	return out, cmp.Or(err, r.spend(256*len(items)))
}

// keys returns the values by which filters compare items: the items or an attribute, texts in lower case unless caseSensitive
// is set.
func (r *renderer) keys(items []any, path any, caseSensitive bool) ([]any, error) {
	keys, err := r.attributes(items, path)
	for i, k := range keys {
		if s, ok := text(k); ok && !caseSensitive {
			keys[i] = lower(s)
			err = cmp.Or(err, r.spend(len(s)))
		}
	}
	return keys, err
}

// attributes returns an attribute of each item, or copies the items if path is nil.
func (r *renderer) attributes(items []any, path any) ([]any, error) {
	out := append([]any{}, items...)
	for i := 0; path != nil && i < len(out); i++ {
		var err error
		if out[i], err = r.path(out[i], path); err != nil {
			return nil, err
		}
	}
	return out, r.spend(16 * len(out))
}

// path looks up a path such as "a.b.0", as the attribute argument of filters.
func (r *renderer) path(v, path any) (any, error) {
	if i, ok := path.(int64); ok {
		return r.item(v, i)
	}
	names, ok := text(path)
	if !ok {
		return nil, fmt.Errorf("an attribute of type %s", typeName(path))
	}
	for _, name := range strings.Split(names, ".") {
		var key any = name
		if i, err := strconv.ParseInt(name, 10, 64); err == nil {
			key = i
		}
		var err error
		if v, err = r.item(v, key); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func mapFilter(r *renderer, v any, args arguments) (any, error) {
	items, err := r.iterateUnlessNone(v)
	if err != nil {
		return nil, err
	}
	path, byAttribute := args.named.Get("attribute")
	apply := func(v any) (any, error) {
		fallback, _ := args.named.Get("default")
		out, err := r.path(v, path)
		if _, missing := out.(undefined); missing && fallback != nil {
			out = fallback
		}
		return out, err
	}
	if !byAttribute {
		name, err := args.text(0, "filter")
		if err != nil {
			return nil, err
		}
		rest := arguments{args.list[min(1, len(args.list)):], args.named}
		apply = func(v any) (any, error) { return r.filter(name, v, rest) }
	}
	out := make([]any, 0, len(items))
	for _, item := range items {
		mapped, err := apply(item)
		if err != nil {
			return nil, err
		}
		out = append(out, mapped)
	}
	return out, r.spend(16 * len(out))
}

// iterateUnlessNone iterates over nothing for None, as Jinja's map, select and reject do.
func (r *renderer) iterateUnlessNone(v any) ([]any, error) {
	if v == nil {
		return nil, nil
	}
	return r.iterate(v)
}

// selectFilter makes select, reject, selectattr and rejectattr.
func selectFilter(keep, byAttribute bool) methodOf[any] {
	return func(r *renderer, v any, args arguments) (any, error) {
		items, err := r.iterateUnlessNone(v)
		if err != nil {
			return nil, err
		}
		rest := args.list
		var path any
		if byAttribute {
			if len(rest) == 0 {
				return nil, errors.New("want an attribute")
			}
			path, rest = rest[0], rest[1:]
		}
		out := []any{}
		for _, item := range items {
			value := item
			if byAttribute {
				if value, err = r.path(item, path); err != nil {
					return nil, err
				}
			}
			yes := truth(value)
			if len(rest) > 0 {
				name, ok := text(rest[0])
				if !ok {
					return nil, fmt.Errorf("a test's name of type %s", typeName(rest[0]))
				}
				if yes, err = r.test(name, value, arguments{list: rest[1:]}); err != nil {
					return nil, err
				}
			}
			if yes == keep {
				out = append(out, item)
			}
		}
		return out, r.spend(16 * len(out))
	}
}

func uniqueFilter(r *renderer, items []any, args arguments) (any, error) {
	keys, err := r.keys(items, args.at(1, "attribute", nil), truth(args.at(0, "case_sensitive", false)))
	if err != nil {
		return nil, err
	}
	out := []any{}
	for i, item := range items {
		found, err := r.contains(keys[:i], keys[i])
		if err != nil {
			return nil, err
		}
		if !found {
			out = append(out, item)
		}
	}
	return out, nil
}

func joinFilter(r *renderer, items []any, args arguments) (any, error) {
	sep, err := str(args.at(0, "d", ""))
	if err != nil {
		return nil, err
	}
	if items, err = r.attributes(items, args.at(1, "attribute", nil)); err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	for i, item := range items {
		if parts[i], err = str(item); err != nil {
			return nil, err
		}
		if err := r.spend(len(parts[i])); err != nil {
			return nil, err
		}
	}
	return r.joinTexts(parts, sep)
}

func batchFilter(r *renderer, items []any, args arguments) (any, error) {
	n, ok := integer(args.at(0, "linecount", nil))
	if !ok || n < 1 || n > maxRange {
		return nil, errors.New("linecount is not a positive integer")
	}
	fill := args.at(1, "fill_with", nil)
	out := []any{}
	for batch := range slices.Chunk(items, int(n)) {
		batch = append([]any{}, batch...)
		for fill != nil && len(batch) < int(n) {
			batch = append(batch, fill)
		}
		out = append(out, batch)
	}
	return out, r.spend(32*len(items) + int(n))
}

func extremeFilter(sign int) methodOf[[]any] {
	return func(r *renderer, items []any, args arguments) (any, error) {
		if len(items) == 0 {
			return undefined{"the extreme of an empty sequence"}, nil
		}
		keys, err := r.keys(items, args.at(1, "attribute", nil), truth(args.at(0, "case_sensitive", false)))
		best := 0
		for i := 1; err == nil && i < len(keys); i++ {
			var c int
			if c, err = r.order(keys[i], keys[best]); c*sign > 0 {
				best = i
			}
		}
		return items[best], err
	}
}

func sumFilter(r *renderer, items []any, args arguments) (any, error) {
	items, err := r.attributes(items, args.at(0, "attribute", nil))
	total := args.at(1, "start", int64(0))
	for i := 0; err == nil && i < len(items); i++ {
		total, err = r.arithmetic("+", total, items[i])
	}
	return total, err
}
