package tool

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
)

var (
	errTooLarge   = fmt.Errorf("a number needs more than %d bits", maxBits)
	errDivideZero = errors.New("division by zero")
)

func withinBits(v *big.Rat) (*big.Rat, error) {
	if v.Num().BitLen() > maxBits || v.Denom().BitLen() > maxBits {
		return nil, errTooLarge
	}
	return v, nil
}

// apply computes a binary operator. The result of % has the sign of the divisor, as in Python.
func apply(op byte, a, b *big.Rat) (*big.Rat, error) {
	switch v := new(big.Rat); op {
	case '+':
		return withinBits(v.Add(a, b))
	case '-':
		return withinBits(v.Sub(a, b))
	case '*':
		return withinBits(v.Mul(a, b))
	case '/':
		if b.Sign() == 0 {
			return nil, errDivideZero
		}
		return withinBits(v.Quo(a, b))
	case '%':
		if b.Sign() == 0 {
			return nil, errDivideZero
		}
		quotient := floor(new(big.Rat).Quo(a, b))
		return withinBits(v.Sub(a, quotient.Mul(quotient, b)))
	default:
		return power(a, b)
	}
}

// power computes a power. It is exact for an integer exponent; for other exponents it uses float64.
func power(base, exponent *big.Rat) (*big.Rat, error) {
	if !exponent.IsInt() {
		x, _ := base.Float64()
		y, _ := exponent.Float64()
		v := new(big.Rat).SetFloat64(math.Pow(x, y)) // nil if not finite
		if v == nil {
			return nil, errors.New("the result is not a finite real number")
		}
		return withinBits(v)
	}
	if !exponent.Num().IsInt64() {
		if base.IsInt() && base.Num().IsInt64() && base.Num().Int64() >= 0 && base.Num().Int64() <= 1 && exponent.Sign() > 0 {
			return base, nil
		}
		return nil, errTooLarge
	}
	n := exponent.Num().Int64()
	if n < 0 {
		if base.Sign() == 0 {
			return nil, errDivideZero
		}
		base, n = new(big.Rat).Inv(base), -n
	}
	// x^n has at least (bits(x)-1)*n bits. If -n overflows, this check refuses it, too.
	size := int64(max(base.Num().BitLen(), base.Denom().BitLen()) - 1)
	if n < 0 || size > 0 && n > maxBits/size {
		return nil, errTooLarge
	}
	if size == 0 { // 0, 1 or -1
		n = n%2 + 2*min(n/2, 1)
	}
	e := big.NewInt(n)
	v := new(big.Rat).SetFrac(new(big.Int).Exp(base.Num(), e, nil), new(big.Int).Exp(base.Denom(), e, nil))
	return withinBits(v)
}

type calculatorFunction struct {
	least, most int // arguments
	call        func([]*big.Rat) (*big.Rat, error)
}

const manyArguments = 100

var calculatorFunctions = map[string]calculatorFunction{
	"abs":   {1, 1, func(a []*big.Rat) (*big.Rat, error) { return new(big.Rat).Abs(a[0]), nil }},
	"floor": {1, 1, func(a []*big.Rat) (*big.Rat, error) { return floor(a[0]), nil }},
	"ceil": {1, 1, func(a []*big.Rat) (*big.Rat, error) {
		v := floor(new(big.Rat).Neg(a[0]))
		return v.Neg(v), nil
	}},
	"max":   {1, manyArguments, func(a []*big.Rat) (*big.Rat, error) { return slices.MaxFunc(a, (*big.Rat).Cmp), nil }},
	"min":   {1, manyArguments, func(a []*big.Rat) (*big.Rat, error) { return slices.MinFunc(a, (*big.Rat).Cmp), nil }},
	"round": {1, 2, round},
	"sqrt":  {1, 1, func(a []*big.Rat) (*big.Rat, error) { return squareRoot(a[0]) }},
}

func floor(v *big.Rat) *big.Rat {
	// Div rounds towards minus infinity for a positive divisor, and denominators are positive.
	return new(big.Rat).SetInt(new(big.Int).Div(v.Num(), v.Denom()))
}

// round rounds half away from zero to a number of decimals, which is 0 if not given.
func round(a []*big.Rat) (*big.Rat, error) {
	digits := int64(0)
	if len(a) == 2 {
		if !a[1].IsInt() || !a[1].Num().IsInt64() || a[1].Num().Int64() < -100 || a[1].Num().Int64() > 100 {
			return nil, errors.New("round: the number of decimals must be an integer from -100 to 100")
		}
		digits = a[1].Num().Int64()
	}
	scale, err := power(big.NewRat(10, 1), big.NewRat(digits, 1))
	if err != nil {
		return nil, err
	}
	v := new(big.Rat).Mul(new(big.Rat).Abs(a[0]), scale)
	v = floor(v.Add(v, big.NewRat(1, 2)))
	v.Quo(v, scale)
	if a[0].Sign() < 0 {
		v.Neg(v)
	}
	return withinBits(v)
}

// squareRoot computes a square root. It is exact if the root is rational, and otherwise accurate to about 30 digits.
func squareRoot(v *big.Rat) (*big.Rat, error) {
	if v.Sign() < 0 {
		return nil, errors.New("the square root of a negative number is not real")
	}
	num, den := new(big.Int).Sqrt(v.Num()), new(big.Int).Sqrt(v.Denom())
	root := new(big.Rat).SetFrac(num, den)
	if new(big.Rat).Mul(root, root).Cmp(v) == 0 {
		return root, nil
	}
	const bits = 110
	r, _ := new(big.Float).Sqrt(new(big.Float).SetPrec(bits).SetRat(v)).Rat(nil)
	return withinBits(r)
}

// FormatRational writes integers and decimals with up to 2 × showDigits places exactly. It rounds other numbers to showDigits
// places, or to about as many significant digits if they are below 1.
func FormatRational(v *big.Rat) string {
	if v.IsInt() {
		return v.Num().String()
	}
	digits, exact := v.FloatPrec()
	if !exact || digits > 2*showDigits {
		digits = showDigits
		if small := v.Denom().BitLen() - v.Num().BitLen(); small > 0 {
			digits += small * 30103 / 100000 // log10(2): a small number gets the same number of significant digits
		}
	}
	return strings.TrimRight(strings.TrimRight(v.FloatString(digits), "0"), ".")
}
