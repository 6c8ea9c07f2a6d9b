package jinja

import (
	"errors"
	"fmt"
	"html"
	"math"
	"math/big"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// maxBits is the size of the largest result of integer arithmetic.
const maxBits = 1 << 14

func (r *renderer) evalBinary(n *nodes.BinaryExpression, s *scope) (any, error) {
	left, err := r.eval(n.Left, s)
	if err != nil {
		return nil, err
	}
	op := n.Operator.Token
	switch {
	case op.Type == tokens.And && !truth(left), op.Type == tokens.Or && truth(left):
		return left, nil
	}
	right, err := r.eval(n.Right, s)
	if err != nil {
		return nil, err
	}
	switch op.Type {
	case tokens.And, tokens.Or:
		return right, nil
	case tokens.Equals:
		return r.equal(left, right)
	case tokens.Ne:
		same, err := r.equal(left, right)
		return !same, err
	case tokens.LowerThan, tokens.LowerThanOrEqual, tokens.GreaterThan, tokens.GreaterThanOrEqual:
		return ordering(op.Type, left, right)
	case tokens.Tilde:
		return r.concat(left, right)
	}
	return r.arithmetic(op, left, right)
}

func ordering(op tokens.Type, left, right any) (any, error) {
	c, err := compare(left, right)
	if err != nil {
		if errors.Is(err, errNaN) {
			return false, nil
		}
		return nil, err
	}
	switch op {
	case tokens.LowerThan:
		return c < 0, nil
	case tokens.LowerThanOrEqual:
		return c <= 0, nil
	case tokens.GreaterThan:
		return c > 0, nil
	}
	return c >= 0, nil
}

// concat evaluates ~, which converts both sides to text.
func (r *renderer) concat(left, right any) (any, error) {
	a, err := str(left)
	if err != nil {
		return nil, err
	}
	b, err := str(right)
	if err != nil {
		return nil, err
	}
	return a + b, r.spend(len(a) + len(b))
}

func (r *renderer) arithmetic(op *tokens.Token, left, right any) (any, error) {
	for _, v := range []any{left, right} {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
	}
	switch op.Type {
	case tokens.Addition:
		if v, ok, err := r.join(left, right); ok {
			return v, err
		}
	case tokens.Multiply:
		if v, ok, err := r.repeat(left, right); ok {
			return v, err
		}
	}
	x, okX := bigInt(left)
	y, okY := bigInt(right)
	if okX && okY && op.Type != tokens.Division {
		return integers(op, x, y)
	}
	f, okF := float(left)
	g, okG := float(right)
	if okF && okG {
		return floats(op, f, g)
	}
	if _, isText := text(left); isText && op.Type == tokens.Addition {
		return nil, fmt.Errorf("can only concatenate str (not %q) to str", typeName(right))
	}
	return nil, fmt.Errorf("unsupported operand type(s) for %s: '%s' and '%s'", op.Val, typeName(left), typeName(right))
}

// join evaluates + of two strings, lists or tuples.
func (r *renderer) join(left, right any) (v any, ok bool, err error) {
	a, okA := text(left)
	b, okB := text(right)
	if okA && okB {
		_, markA := left.(markup)
		_, markB := right.(markup)
		switch {
		case markA && !markB:
			b = html.EscapeString(b)
		case markB && !markA:
			a = html.EscapeString(a)
		}
		err := r.spend(len(a) + len(b))
		if markA || markB {
			return markup(a + b), true, err
		}
		return a + b, true, err
	}
	switch a := left.(type) {
	case []any:
		if b, ok := right.([]any); ok {
			return append(append([]any{}, a...), b...), true, r.spend(16 * (len(a) + len(b)))
		}
	case ordered.Tuple:
		if b, ok := right.(ordered.Tuple); ok {
			return append(append(ordered.Tuple{}, a...), b...), true, r.spend(16 * (len(a) + len(b)))
		}
	}
	return nil, false, nil
}

// repeat evaluates * of a string or list and an integer.
func (r *renderer) repeat(left, right any) (v any, ok bool, err error) {
	n, isCount := integer(right)
	if !isCount {
		left, right = right, left
		if n, isCount = integer(right); !isCount {
			return nil, false, nil
		}
	}
	n = max(n, 0)
	if s, ok := text(left); ok {
		if err := r.spendTimes(len(s), n); err != nil {
			return nil, true, err
		}
		return strings.Repeat(s, int(n)), true, nil
	}
	if items, ok := left.([]any); ok {
		if err := r.spendTimes(16*len(items), n); err != nil {
			return nil, true, err
		}
		out := []any{}
		for range n {
			out = append(out, items...)
		}
		return out, true, nil
	}
	return nil, false, nil
}

func (r *renderer) spendTimes(size int, n int64) error {
	if size > 0 && n > int64(maxBytes/size) || n > maxSteps {
		return r.spend(maxBytes + 1)
	}
	return r.spend(size * int(n))
}

// integers does Python's integer arithmetic: // and % round towards minus infinity.
func integers(op *tokens.Token, x, y *big.Int) (any, error) {
	z := new(big.Int)
	switch op.Type {
	case tokens.Addition:
		z.Add(x, y)
	case tokens.Subtraction:
		z.Sub(x, y)
	case tokens.Multiply:
		if x.BitLen()+y.BitLen() > maxBits {
			return nil, fmt.Errorf("an integer of more than %d bits", maxBits)
		}
		z.Mul(x, y)
	case tokens.FloorDivision, tokens.Modulo:
		if y.Sign() == 0 {
			return nil, errors.New("integer division or modulo by zero")
		}
		rest := new(big.Int)
		z.DivMod(x, y, rest) // rest is never negative
		if y.Sign() < 0 && rest.Sign() != 0 {
			z.Sub(z, big.NewInt(1))
			rest.Add(rest, y)
		}
		if op.Type == tokens.Modulo {
			z = rest
		}
	case tokens.Power:
		if y.Sign() < 0 {
			return floats(op, floatOf(x), floatOf(y))
		}
		if x.BitLen() > 1 && (!y.IsInt64() || y.Int64() > int64(maxBits/x.BitLen())) {
			return nil, fmt.Errorf("an integer of more than %d bits", maxBits)
		}
		if x.BitLen() <= 1 {
			y = new(big.Int).Add(new(big.Int).And(y, big.NewInt(1)), big.NewInt(2*int64(min(1, y.BitLen()))))
		}
		z.Exp(x, y, nil)
	default:
		return nil, fmt.Errorf("operator %s", op.Val)
	}
	return small(z), nil
}

func floatOf(x *big.Int) float64 { f, _ := float(x); return f }

func floats(op *tokens.Token, f, g float64) (any, error) {
	if g == 0 && (op.Type == tokens.Division || op.Type == tokens.FloorDivision || op.Type == tokens.Modulo) {
		return nil, errors.New("division by zero")
	}
	switch op.Type {
	case tokens.Addition:
		return f + g, nil
	case tokens.Subtraction:
		return f - g, nil
	case tokens.Multiply:
		return f * g, nil
	case tokens.Division:
		return f / g, nil
	case tokens.FloorDivision:
		return math.Floor(f / g), nil
	case tokens.Modulo:
		rest := math.Mod(f, g)
		if rest != 0 && (rest < 0) != (g < 0) {
			rest += g
		}
		return rest, nil
	case tokens.Power:
		return math.Pow(f, g), nil
	}
	return nil, fmt.Errorf("operator %s", op.Val)
}

// plus is the operator +.
var plus = &tokens.Token{Type: tokens.Addition, Val: "+"}
