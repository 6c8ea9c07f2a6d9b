package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

func (r *renderer) filter(name string, v any, args arguments) (any, error) {
	f, ok := filters[name]
	if !ok {
		return nil, fmt.Errorf("no filter named %q", name)
	}
	out, err := f(r, v, args)
	return out, named(name, err)
}

var filters map[string]methodOf[any]

func init() { // set in init, because map itself looks up filters
	filters = map[string]methodOf[any]{
		"abs": absFilter, "attr": attrFilter, "batch": ofItems(batchFilter), "capitalize": ofText(mapMethod(capitalize)), "count": lengthFilter,
		"d": defaultFilter, "default": defaultFilter, "dictsort": dictsortFilter, "e": escapeFilter, "escape": escapeFilter,
		"first": ofItems(firstFilter), "float": floatFilter, "indent": indentFilter, "int": intFilter, "items": itemsFilter,
		"join": ofItems(joinFilter), "last": ofItems(lastFilter), "length": lengthFilter, "list": ofItems(listFilter),
		"lower": ofText(mapMethod(strings.ToLower)), "map": mapFilter, "max": ofItems(extremeFilter(1)), "min": ofItems(extremeFilter(-1)),
		"reject": selectFilter(false, false), "rejectattr": selectFilter(false, true), "replace": ofText(takes(2, 3, (*renderer).replace)),
		"reverse": reverseFilter, "round": roundFilter, "safe": safeFilter, "select": selectFilter(true, false),
		"selectattr": selectFilter(true, true), "sort": ofItems(sortFilter), "string": ofText(stringFilter), "sum": ofItems(sumFilter),
		"title": ofText(mapMethod(titleWords)), "tojson": takes(0, 4, tojsonFilter), "trim": ofText(takes(0, 1, stripMethod(true, true))),
		"unique": ofItems(uniqueFilter), "upper": ofText(mapMethod(strings.ToUpper)), "wordcount": ofText(wordcountFilter),
	}
}

// ofText applies a filter to the text of any value.
func ofText(m methodOf[string]) methodOf[any] {
	return func(r *renderer, v any, args arguments) (any, error) {
		s, err := str(v)
		if err != nil {
			return nil, err
		}
		if err := r.spend(len(s)); err != nil {
			return nil, err
		}
		return m(r, s, args)
	}
}

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

// titleWords capitalises words. A word starts after white space, a dash or an opening bracket, unlike in str.title.
func titleWords(s string) string {
	var out strings.Builder
	start := 0
	emit := func(word string) { out.WriteString(capitalize(word)) }
	for i, r := range s {
		if isSpace(r) || strings.ContainsRune("-({[<", r) {
			emit(s[start:i])
			out.WriteRune(r)
			start = i + len(string(r))
		}
	}
	emit(s[start:])
	return out.String()
}

func tojsonFilter(r *renderer, v any, args arguments) (any, error) {
	format := ordered.Format{
		ASCII:    truth(args.at(0, "ensure_ascii", false)),
		SortKeys: truth(args.at(3, "sort_keys", false)),
	}
	switch indent := args.at(1, "indent", nil).(type) {
	case nil:
	case int64:
		if indent > 1000 {
			return nil, fmt.Errorf("an indent of %d", indent)
		}
		s := strings.Repeat(" ", int(max(indent, 0)))
		format.Indent = &s
	case string:
		format.Indent = &indent
	default:
		return nil, fmt.Errorf("an indent of type %s", typeName(indent))
	}
	if v := args.at(2, "separators", nil); v != nil {
		pair, _ := list(v)
		if len(pair) != 2 {
			return nil, errors.New("separators are not two strings")
		}
		var okItem, okKey bool
		format.ItemSeparator, okItem = pair[0].(string)
		format.KeySeparator, okKey = pair[1].(string)
		if !okItem || !okKey {
			return nil, errors.New("separators are not two strings")
		}
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if m, ok := v.(markup); ok {
		v = string(m)
	}
	text, err := ordered.Dumps(v, format)
	if err != nil {
		return nil, err
	}
	return text, r.spend(len(text))
}

func stringFilter(r *renderer, s string, args arguments) (any, error) { return s, nil }

func safeFilter(r *renderer, v any, args arguments) (any, error) {
	s, err := str(v)
	return markup(s), err
}

func escapeFilter(r *renderer, v any, args arguments) (any, error) {
	if m, ok := v.(markup); ok {
		return m, nil
	}
	s, err := str(v)
	if err != nil {
		return nil, err
	}
	return markup(html.EscapeString(s)), r.spend(6 * len(s))
}

func lengthFilter(r *renderer, v any, args arguments) (any, error) {
	n, err := length(v)
	return int64(n), err
}

func listFilter(r *renderer, items []any, args arguments) (any, error) {
	return append([]any{}, items...), r.spend(16 * len(items))
}

func firstFilter(r *renderer, items []any, args arguments) (any, error) {
	if len(items) == 0 {
		return undefined{"the first item of an empty sequence"}, nil
	}
	return items[0], nil
}

func lastFilter(r *renderer, items []any, args arguments) (any, error) {
	if len(items) == 0 {
		return undefined{"the last item of an empty sequence"}, nil
	}
	return items[len(items)-1], nil
}

func reverseFilter(r *renderer, v any, args arguments) (any, error) {
	items, err := r.iterate(v)
	if err != nil {
		return nil, err
	}
	out := append([]any{}, items...)
	slices.Reverse(out)
	if _, ok := text(v); !ok {
		return out, r.spend(16 * len(out))
	}
	parts := make([]string, len(out))
	for i, c := range out {
		parts[i] = c.(string)
	}
	return r.joinTexts(parts, "")
}

func itemsFilter(r *renderer, v any, args arguments) (any, error) {
	switch v := v.(type) {
	case undefined:
		return []any{}, nil
	case *ordered.Object:
		return r.items(v)
	}
	return nil, errors.New("can only get item pairs from a mapping")
}

// dictsortFilter sorts pairs by key or value. It ignores the case of strings unless case_sensitive is true.
func dictsortFilter(r *renderer, v any, args arguments) (any, error) {
	o, ok := v.(*ordered.Object)
	if !ok {
		return nil, fmt.Errorf("want a dictionary, have %s", typeName(v))
	}
	pairs, err := r.items(o)
	if err != nil {
		return nil, err
	}
	by := int64(0)
	if args.at(1, "by", "key") == "value" {
		by = 1
	}
	return r.sort(pairs, by, truth(args.at(0, "case_sensitive", false)), truth(args.at(2, "reverse", false)))
}

func sortFilter(r *renderer, items []any, args arguments) (any, error) {
	path, caseSensitive := args.at(2, "attribute", nil), truth(args.at(1, "case_sensitive", false))
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
		c, failed := compare(keys[i], keys[j])
		err = cmp.Or(err, failed)
		return c
	})
	out := make([]any, len(items))
	for to, from := range order {
		out[to] = items[from]
	}
	return out, cmp.Or(err, r.spend(256*len(items)))
}

// keys returns what filters compare items by: the items or an attribute, texts in lower case unless caseSensitive is set.
func (r *renderer) keys(items []any, path any, caseSensitive bool) ([]any, error) {
	keys, err := r.attributes(items, path)
	for i, k := range keys {
		if s, ok := text(k); ok && !caseSensitive {
			keys[i] = strings.ToLower(s)
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

func attrFilter(r *renderer, v any, args arguments) (any, error) {
	name, err := args.text(0, "name")
	if err != nil {
		return nil, err
	}
	if o, ok := v.(*ordered.Object); ok { // an object has keys; only attributes are looked up here
		if m, ok := method(o, name); ok {
			return m, nil
		}
		return missing(o, name), nil
	}
	return attribute(v, name)
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
		rest := arguments{args.list[1:], args.named}
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

func defaultFilter(r *renderer, v any, args arguments) (any, error) {
	_, missing := v.(undefined)
	if missing || truth(args.at(1, "boolean", false)) && !truth(v) {
		return args.at(0, "default_value", ""), nil
	}
	return v, nil
}

func indentFilter(r *renderer, v any, args arguments) (any, error) {
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if v == nil {
		return nil, errors.New("indent: 'NoneType' object is not a text")
	}
	s, err := str(v)
	if err != nil {
		return nil, err
	}
	pad := "    "
	switch width := args.at(0, "width", int64(4)).(type) {
	case int64:
		if width > 1000 {
			return nil, fmt.Errorf("a width of %d", width)
		}
		pad = strings.Repeat(" ", int(max(width, 0)))
	case string:
		pad = width
	default:
		return nil, fmt.Errorf("a width of type %s", typeName(width))
	}
	lines := strings.Split(s, "\n")
	if err := r.spendTimes(len(pad)+32, int64(len(lines))); err != nil {
		return nil, err
	}
	first, blank := truth(args.at(1, "first", false)), truth(args.at(2, "blank", false))
	for i, line := range lines {
		if i == 0 && !first || line == "" && !blank && i > 0 {
			continue
		}
		lines[i] = pad + line
	}
	return strings.Join(lines, "\n"), r.spend(len(s))
}

func wordcountFilter(r *renderer, s string, args arguments) (any, error) {
	words := strings.FieldsFunc(s, func(c rune) bool {
		return c != '_' && !unicode.IsLetter(c) && !unicode.IsNumber(c)
	})
	return int64(len(words)), nil
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

func intFilter(r *renderer, v any, args arguments) (any, error) {
	fallback := args.at(0, "default", int64(0))
	if len(args.list) > 1 || args.named.Len() > 0 && args.at(0, "default", nil) == nil {
		return nil, errors.New("a base is not supported")
	}
	switch v := v.(type) {
	case undefined:
		return nil, v.err()
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fallback, nil
		}
		b, _ := big.NewFloat(v).Int(nil)
		return small(b), nil
	}
	if b, ok := bigInt(v); ok {
		return small(b), nil
	}
	s, ok := text(v)
	s = strings.TrimFunc(s, isSpace)
	if !ok || len(s) > ordered.MaxDigits {
		return fallback, nil
	}
	if b, ok := new(big.Int).SetString(s, 10); ok {
		return small(b), nil
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return intFilter(r, f, args)
	}
	return fallback, nil
}

func floatFilter(r *renderer, v any, args arguments) (any, error) {
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if f, ok := float(v); ok {
		return f, nil
	}
	if s, ok := text(v); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil {
			return f, nil
		}
	}
	return args.at(0, "default", 0.0), nil
}

func absFilter(r *renderer, v any, args arguments) (any, error) {
	if f, ok := v.(float64); ok {
		return math.Abs(f), nil
	}
	b, ok := bigInt(v)
	if !ok {
		return nil, fmt.Errorf("bad operand type: '%s'", typeName(v))
	}
	return small(new(big.Int).Abs(b)), nil
}

// roundFilter rounds ties to even unless a method is given. An integer stays an integer.
func roundFilter(r *renderer, v any, args arguments) (any, error) {
	f, ok := float(v)
	places, okPlaces := integer(args.at(0, "precision", int64(0)))
	if !ok || !okPlaces || places < -300 || places > 300 {
		return nil, fmt.Errorf("round of '%s'", typeName(v))
	}
	scale := math.Pow(10, float64(places))
	switch m := args.at(1, "method", "common"); m {
	case "common":
		if isInteger(v) && places >= 0 {
			return v, nil
		}
		if places < 0 {
			return math.RoundToEven(f*scale) / scale, nil
		}
		return strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(places), 64), 64)
	case "floor":
		return math.Floor(f*scale) / scale, nil
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	default:
		return nil, errors.New("method must be common, ceil or floor")
	}
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
			if c, err = compare(keys[i], keys[best]); c*sign > 0 {
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
