package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// conversion matches one conversion of Python's % operator: a key, flags, a width, a precision and a type.
var conversion = regexp.MustCompile(`%(?:\(([^()]*)\))?([-+ 0#]*)(\d*)(?:\.(\d*))?([a-zA-Z%])|%`)

// percent evaluates format % values. A tuple has the values of several conversions, and a dictionary those of keys.
func percent(r *renderer, format, values any) (any, error) {
	text, ok := format.(string)
	if !ok {
		return nil, errors.New("formatting of a safe string is not supported")
	}
	list, isTuple := values.(ordered.Tuple)
	keys, isDict := dictionaryOf(values)
	if !isTuple {
		list = ordered.Tuple{values}
	}
	var out strings.Builder
	next := 0
	for at := 0; ; {
		m := conversion.FindStringSubmatchIndex(text[at:])
		if m == nil {
			out.WriteString(text[at:])
			break
		}
		group := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[at+m[2*i] : at+m[2*i+1]]
		}
		out.WriteString(text[at : at+m[0]])
		var v any
		switch {
		case group(5) == "":
			return nil, fmt.Errorf("the format %.60q has a conversion that is not supported", text)
		case group(5) == "%":
		case m[2] >= 0 && !isDict:
			return nil, errors.New("format requires a mapping")
		case m[2] >= 0:
			found := false
			var err error
			if v, found, err = keys.get(r, group(1)); err != nil || !found {
				return nil, errors.Join(err, fmt.Errorf("no key %q", group(1)))
			}
		case next == len(list):
			return nil, errors.New("not enough arguments for format string")
		default:
			v = list[next]
			next++
		}
		piece, err := formatted(v, group(2), group(3), group(4), m[8] >= 0, group(5))
		if err = errors.Join(err, r.spend(len(piece))); err != nil {
			return nil, err
		}
		out.WriteString(piece)
		at += m[1]
	}
	if next < len(list) && !isDict {
		return nil, errors.New("not all arguments converted during string formatting")
	}
	return out.String(), nil
}

// maxWidth is the largest width and precision of a formatted value.
const maxWidth = 1000

// formatted formats one value as Python's % operator does.
func formatted(v any, flags, width, precision string, precise bool, kind string) (string, error) {
	for _, n := range []string{width, precision} {
		if size, err := strconv.Atoi(n); n != "" && (err != nil || size > maxWidth) {
			return "", fmt.Errorf("a width or precision of more than %d", maxWidth)
		}
	}
	if u, ok := v.(undefined); ok && kind != "s" {
		return "", u.err()
	}
	if precise {
		precision = "." + precision
	}
	switch kind {
	case "%":
		return "%", nil
	case "s", "r":
		text, err := str(v)
		if kind == "r" {
			text, err = ordered.Repr(v)
		}
		if !strings.Contains(flags, "-") {
			flags = ""
		}
		return fmt.Sprintf("%"+strings.Trim(flags, "+ 0#")+width+precision+"s", text), err
	case "d", "i", "u", "x", "X":
		n, ok := bigInt(v)
		if f, isFloat := v.(float64); isFloat && kind != "x" && kind != "X" && !math.IsInf(f, 0) && !math.IsNaN(f) {
			n, _ = big.NewFloat(f).Int(nil)
			ok = true
		}
		if !ok {
			return "", fmt.Errorf("%%%s format: a real number is required, not %s", kind, typeName(v))
		}
		if kind == "i" || kind == "u" {
			kind = "d"
		}
		return fmt.Sprintf("%"+flags+width+precision+kind, n), nil
	case "f", "F", "e", "E", "g", "G":
		f, ok := float(v)
		if !ok || math.IsInf(f, 0) || math.IsNaN(f) || strings.Contains(flags, "#") {
			return "", fmt.Errorf("%%%s of a value of type %s is not supported", kind, typeName(v))
		}
		if !precise {
			precision = ".6"
		}
		return fmt.Sprintf("%"+flags+width+precision+kind, f), nil
	}
	return "", fmt.Errorf("the conversion %%%s is not supported", kind)
}

// formatFilter does the same as %, with its arguments as the values.
func formatFilter(r *renderer, v any, args arguments) (any, error) {
	switch {
	case len(args.list) > 0 && args.named.Len() > 0:
		return nil, errors.New("can't handle positional and keyword arguments at the same time")
	case args.named.Len() > 0:
		return percent(r, v, args.named)
	}
	return percent(r, v, ordered.Tuple(args.list))
}

var (
	replacement = regexp.MustCompile(`\{\{|\}\}|\{(\w*)(?:!([rs]))?(?::([^{}]*))?\}|[{}]`)
	formatSpec  = regexp.MustCompile(`^(?:(.)?([<>^]))?([+ ]?)(0?)(\d*)(?:\.(\d+))?([sdfFeEgGxX]?)$`)
)

// formatMethod implements str.format for fields that are numbers or names, without attributes and items.
func formatMethod(r *renderer, s string, args arguments) (any, error) {
	var out strings.Builder
	at, next, numbered := 0, 0, false
	for _, m := range replacement.FindAllStringSubmatchIndex(s, -1) {
		out.WriteString(s[at:m[0]])
		at = m[1]
		whole := s[m[0]:m[1]]
		switch {
		case whole == "{{" || whole == "}}":
			out.WriteString(whole[:1])
			continue
		case len(whole) < 2:
			return nil, fmt.Errorf("the format %.60q has a field that is not supported", s)
		}
		field := s[m[2]:m[3]]
		i, err := strconv.Atoi(field)
		v, found := args.named.Get(field)
		switch {
		case field == "" && numbered, field != "" && err == nil && next > 0:
			return nil, errors.New("cannot switch between manual field specification and automatic field numbering")
		case field == "":
			i, next, err = next, next+1, nil
		case err == nil:
			numbered = true
		}
		if err == nil && i < len(args.list) {
			v, found = args.list[i], true
		}
		if !found {
			return nil, fmt.Errorf("no argument for the field {%s}", field)
		}
		if m[4] >= 0 && s[m[4]:m[5]] == "r" {
			v, err = ordered.Repr(v)
		} else if m[4] >= 0 {
			v, err = str(v)
		} else {
			err = nil
		}
		spec := ""
		if m[6] >= 0 {
			spec = s[m[6]:m[7]]
		}
		piece, again := withSpec(v, spec)
		if err = errors.Join(err, again, r.spend(len(piece))); err != nil {
			return nil, err
		}
		out.WriteString(piece)
	}
	out.WriteString(s[at:])
	return out.String(), nil
}

// withSpec formats a value by the part of a field behind its colon.
func withSpec(v any, spec string) (string, error) {
	if spec == "" {
		return str(v)
	}
	m := formatSpec.FindStringSubmatch(spec)
	_, isText := text(v)
	_, isFloat := v.(float64)
	number := isNumber(v)
	if m == nil || !isText && !number || isText && (m[3]+m[4] != "" || m[7] != "" && m[7] != "s") || number && (m[7] == "s" || isFloat && m[7] == "d") ||
		m[7] == "" && isFloat || m[4] != "" && m[2] != "" || !isText && !isFloat && m[6] != "" && strings.Contains("dxX", m[7]) {
		return "", fmt.Errorf("the format %.60q of a value of type %s is not supported", spec, typeName(v))
	}
	fill, align, kind := m[1], m[2], m[7]
	if fill == "" {
		fill = " "
	}
	if kind == "" {
		kind = map[bool]string{true: "s", false: "d"}[isText]
	}
	width := ""
	if m[4] != "" {
		width = m[5]
	}
	piece, err := formatted(v, m[3]+m[4], width, m[6], m[6] != "", kind)
	if size, _ := strconv.Atoi(m[5]); err == nil && size > maxWidth {
		return "", fmt.Errorf("a width of more than %d", maxWidth)
	} else if space := size - utf8.RuneCountInString(piece); space > 0 {
		left := map[string]int{"<": 0, "^": space / 2, ">": space, "": space}[align]
		if align == "" && isText {
			left = 0
		}
		piece = strings.Repeat(fill, left) + piece + strings.Repeat(fill, space-left)
	}
	return piece, err
}
