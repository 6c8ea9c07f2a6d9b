package sandbox

import (
	"errors"
	"fmt"
	"math"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
)

// Built-in functions of Python that models use and Starlark lacks.

// sum(iterable, start=0)
func sum(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var items starlark.Iterable
	var total starlark.Value = starlark.MakeInt(0)
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "iterable", &items, "start?", &total); err != nil {
		return nil, err
	}
	it := items.Iterate()
	defer it.Done()
	var x starlark.Value
	for it.Next(&x) {
		var err error
		if total, err = starlark.Binary(syntax.PLUS, total, x); err != nil {
			return nil, err
		}
	}
	return total, nil
}

// pow(base, exponent[, modulus]): integers stay exact.
func pow(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var base, exponent, modulus starlark.Value
	if err := starlark.UnpackPositionalArgs(b.Name(), args, kwargs, 2, &base, &exponent, &modulus); err != nil {
		return nil, err
	}
	x, xIsInt := base.(starlark.Int)
	n, nIsInt := exponent.(starlark.Int)
	if xIsInt && nIsInt && n.Sign() >= 0 {
		return powInt(x, n, modulus)
	}
	if modulus != nil {
		return nil, errors.New("pow: with a modulus all arguments must be integers and the exponent not negative")
	}
	xf, okX := starlark.AsFloat(base)
	nf, okN := starlark.AsFloat(exponent)
	if !okX || !okN {
		return nil, fmt.Errorf("pow: got %s and %s, want numbers", base.Type(), exponent.Type())
	}
	return starlark.Float(math.Pow(xf, nf)), nil
}

func powInt(x, n starlark.Int, modulus starlark.Value) (starlark.Value, error) {
	base, exponent := x.BigInt(), n.BigInt()
	if modulus == nil {
		const maxBitsOfPower = 1 << 20
		if base.BitLen() > 1 && (!exponent.IsInt64() || exponent.Int64() > maxBitsOfPower/int64(base.BitLen())) {
			return nil, fmt.Errorf("pow: the result has more than %d bits", maxBitsOfPower)
		}
		return starlark.MakeBigInt(base.Exp(base, exponent, nil)), nil
	}
	m, ok := modulus.(starlark.Int)
	if !ok || m.Sign() <= 0 {
		return nil, errors.New("pow: the modulus must be a positive integer")
	}
	return starlark.MakeBigInt(base.Exp(base, exponent, m.BigInt())), nil
}

// round(x[, digits]): half to even, as in Python.
func roundNumber(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var value starlark.Value
	var digits starlark.Value = starlark.None
	if err := starlark.UnpackArgs(b.Name(), args, kwargs, "number", &value, "ndigits?", &digits); err != nil {
		return nil, err
	}
	if whole, ok := value.(starlark.Int); ok && digits == starlark.None {
		return whole, nil
	}
	x, ok := starlark.AsFloat(value)
	if !ok {
		return nil, fmt.Errorf("round: got %s, want a number", value.Type())
	}
	if digits == starlark.None {
		return starlark.NumberToInt(starlark.Float(math.RoundToEven(x)))
	}
	n, err := starlark.AsInt32(digits)
	if err != nil || n < -300 || n > 300 {
		return nil, errors.New("round: ndigits must be an integer from -300 to 300")
	}
	scale := math.Pow(10, float64(n))
	return starlark.Float(math.RoundToEven(x*scale) / scale), nil
}
