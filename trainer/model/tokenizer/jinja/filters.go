package jinja

import (
	"errors"
	"fmt"
	"html"
	"math"
	"math/big"
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
	return out, withName(name, err)
}

var filters map[string]methodOf[any]

func init() { // set in init, because map itself looks up filters
	filters = map[string]methodOf[any]{
		"abs": absFilter, "attr": attrFilter, "batch": asGenerator(ofItems(batchFilter)), "capitalize": ofText(mapMethod(capitalize)), "count": lengthFilter,
		"d": defaultFilter, "default": defaultFilter, "dictsort": dictsortFilter, "e": escapeFilter, "escape": escapeFilter,
		"first": ofItems(endFilter(false)), "float": floatFilter, "format": formatFilter, "indent": indentFilter, "int": intFilter,
		"items": asGenerator(itemsFilter),
		"join":  ofItems(joinFilter), "last": ofItems(endFilter(true)), "length": lengthFilter, "list": ofItems(listFilter),
		"lower": ofText(mapMethod(lower)), "map": asGenerator(mapFilter), "max": ofItems(extremeFilter(1)), "min": ofItems(extremeFilter(-1)),
		"reject": asGenerator(selectFilter(false, false)), "rejectattr": asGenerator(selectFilter(false, true)),
		"replace": ofText(withArity(2, 3, (*renderer).replace)),
		"reverse": reverseFilter, "round": roundFilter, "safe": safeFilter, "select": asGenerator(selectFilter(true, false)),
		"selectattr": asGenerator(selectFilter(true, true)), "sort": ofItems(sortFilter), "string": ofText(stringFilter), "sum": ofItems(sumFilter),
		"title": ofText(mapMethod(titleWords)), "tojson": withArity(0, 4, tojsonFilter), "trim": ofText(withArity(0, 1, stripMethod(strings.TrimFunc))),
		"unique": asGenerator(ofItems(uniqueFilter)), "upper": ofText(mapMethod(upper)), "wordcount": ofText(wordcountFilter),
	}
}

// asGenerator makes the result of a filter a generator.
func asGenerator(m methodOf[any]) methodOf[any] {
	return func(r *renderer, v any, args arguments) (any, error) {
		out, err := m(r, v, args)
		items, _ := list(out)
		return &generator{items}, err
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

// titleWords capitalises words. A word starts after white space, a dash or an opening bracket, unlike in str.title.
func titleWords(s string) string {
	var out strings.Builder
	start := 0
	for i, r := range s {
		if isSpace(r) || strings.ContainsRune("-({[<", r) {
			out.WriteString(capitalize(s[start:i]))
			out.WriteRune(r)
			start = i + len(string(r))
		}
	}
	out.WriteString(capitalize(s[start:]))
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
		for i, to := range []*string{&format.ItemSeparator, &format.KeySeparator} {
			ok := len(pair) == 2
			if ok {
				*to, ok = pair[i].(string)
			}
			if !ok {
				return nil, errors.New("separators are not two strings")
			}
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

func attrFilter(r *renderer, v any, args arguments) (any, error) {
	name, err := args.text(0, "name")
	if err != nil {
		return nil, err
	}
	if _, ok := dictionaryOf(v); ok { // a dictionary has keys; only attributes are looked up here
		if m, ok := method(v, name); ok {
			return m, nil
		}
		return missing(v, name), nil
	}
	return attribute(v, name)
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
	lines := splitLines(s+"\n", false)
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
