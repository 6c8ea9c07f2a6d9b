package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"unicode"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// test evaluates `v is name` with its arguments.
func (r *renderer) test(name string, v any, args arguments) (bool, error) {
	if is, ok := typeTests[name]; ok {
		return is(v), withName("is "+name, args.count(0, 0))
	}
	if is, ok := textTests[name]; ok {
		s, err := str(v)
		if err == nil {
			err = r.spend(len(s))
		}
		return err == nil && is(s), withName("is "+name, cmp.Or(err, args.count(0, 0)))
	}
	operator, isComparison := comparisonTests[name]
	is, ok := argumentTests[name]
	if !ok && !isComparison {
		return false, fmt.Errorf("no test named %q", name)
	}
	argument, err := args.only()
	switch {
	case err != nil:
		return false, withName("is "+name, err)
	case isComparison:
		return r.compare(operator, v, argument)
	}
	return is(r, v, argument)
}

var typeTests = map[string]func(any) bool{
	"defined":   func(v any) bool { _, missing := v.(undefined); return !missing },
	"undefined": func(v any) bool { _, missing := v.(undefined); return missing },
	"none":      func(v any) bool { return v == nil },
	"boolean":   func(v any) bool { _, ok := v.(bool); return ok },
	"true":      func(v any) bool { return v == true },
	"false":     func(v any) bool { return v == false },
	"integer":   isInteger,
	"float":     func(v any) bool { _, ok := v.(float64); return ok },
	"number":    isNumber,
	"string":    func(v any) bool { _, ok := text(v); return ok },
	"mapping":   func(v any) bool { _, ok := dictionaryOf(v); return ok },
	"sequence":  isSequence,
	"iterable":  isIterable,
	"callable":  func(v any) bool { _, ok := v.(function); return ok },
	"odd":       func(v any) bool { n, ok := bigInt(v); return ok && n.Bit(0) == 1 },
	"even":      func(v any) bool { n, ok := bigInt(v); return ok && n.Bit(0) == 0 },
}

// isSequence reports whether a value has a length and items by index or key. Jinja calls __getitem__ and len.
func isSequence(v any) bool {
	_, isView := v.(ordered.View)
	_, err := length(v)
	return err == nil && !isView
}

func isIterable(v any) bool {
	_, isGenerator := v.(*generator)
	_, err := length(v)
	return err == nil || isGenerator
}

func isInteger(v any) bool {
	switch v.(type) {
	case int64, *big.Int:
		return true
	}
	return false
}

func hasCase(s string, want, not func(rune) bool) bool {
	return strings.ContainsFunc(s, want) && !strings.ContainsFunc(s, not)
}

// comparisonTests are the tests that are operators.
var comparisonTests = map[string]string{"in": "in", "eq": "==", "equalto": "==", "==": "==", "ne": "!=", "!=": "!=", "lt": "<", "lessthan": "<",
	"<": "<", "le": "<=", "<=": "<=", "gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">="}

// textTests convert their value to text.
var textTests = map[string]func(string) bool{
	"lower": func(s string) bool { return hasCase(s, unicode.IsLower, unicode.IsUpper) },
	"upper": func(s string) bool { return hasCase(s, unicode.IsUpper, unicode.IsLower) },
}

var argumentTests = map[string]func(r *renderer, v, argument any) (bool, error){
	"sameas": func(r *renderer, v, argument any) (bool, error) {
		if typeName(v) != typeName(argument) {
			return false, nil
		}
		return r.equal(v, argument)
	},
	"divisibleby": func(r *renderer, v, argument any) (bool, error) {
		x, okX := bigInt(v)
		y, okY := bigInt(argument)
		if !okX || !okY || y.Sign() == 0 {
			return false, errors.New("is divisibleby: want integers, not 0")
		}
		return new(big.Int).Rem(x, y).Sign() == 0, nil
	},
}
