package jinja

import (
	"errors"
	"fmt"
	"html"
	"math"
	"math/big"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// maxBits is the size of the largest result of integer arithmetic.
const maxBits = 1 << 14

func (n *binary) eval(r *renderer, s *scope) (any, error) {
	left, err := r.eval(n.left, s)
	switch {
	case err != nil:
		return nil, err
	case n.operator == "and" && !truth(left), n.operator == "or" && truth(left):
		return left, nil
	}
	right, err := r.eval(n.right, s)
	switch {
	case err != nil:
		return nil, err
	case n.operator == "and" || n.operator == "or":
		return right, nil
	case n.operator == "~":
		return r.concat(left, right)
	}
	return r.arithmetic(n.operator, left, right)
}

// eval evaluates a chain up to the first comparison that does not hold.
func (n *comparison) eval(r *renderer, s *scope) (any, error) {
	left, err := r.eval(n.first, s)
	if err != nil {
		return nil, err
	}
	for _, c := range n.rest {
		right, err := r.eval(c.right, s)
		if err != nil {
			return nil, err
		}
		if holds, err := r.compare(c.operator, left, right); err != nil || !holds {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (r *renderer) compare(op string, left, right any) (bool, error) {
	switch op {
	case "==":
		return r.equal(left, right)
	case "!=":
		same, err := r.equal(left, right)
		return !same, err
	case "in":
		return r.contains(right, left)
	case "not in":
		found, err := r.contains(right, left)
		return !found, err
	}
	c, err := r.order(left, right)
	switch {
	case errors.Is(err, errNaN):
		return false, nil
	case err != nil:
		return false, err
	}
	return c < 0 && op[0] == '<' || c > 0 && op[0] == '>' || c == 0 && len(op) == 2, nil
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

func (r *renderer) arithmetic(op string, left, right any) (any, error) {
	for _, v := range []any{left, right} {
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
	}
	switch op {
	case "%":
		if _, ok := text(left); ok {
			return percent(r, left, right)
		}
	case "+":
		if v, ok, err := r.join(left, right); ok {
			return v, err
		}
	case "*":
		if v, ok, err := r.repeat(left, right); ok {
			return v, err
		}
	}
	x, okX := bigInt(left)
	y, okY := bigInt(right)
	if okX && okY && op != "/" {
		return integers(op, x, y)
	}
	f, okF := float(left)
	g, okG := float(right)
	if okF && okG {
		return floats(op, f, g)
	}
	if _, isText := text(left); isText && op == "+" {
		return nil, fmt.Errorf("can only concatenate str (not %q) to str", typeName(right))
	}
	return nil, fmt.Errorf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(left), typeName(right))
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
func integers(op string, x, y *big.Int) (any, error) {
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(x, y)
	case "-":
		z.Sub(x, y)
	case "*":
		if x.BitLen()+y.BitLen() > maxBits {
			return nil, fmt.Errorf("an integer of more than %d bits", maxBits)
		}
		z.Mul(x, y)
	case "//", "%":
		if y.Sign() == 0 {
			return nil, errors.New("integer division or modulo by zero")
		}
		rest := new(big.Int)
		z.DivMod(x, y, rest) // rest is never negative
		if y.Sign() < 0 && rest.Sign() != 0 {
			z.Sub(z, big.NewInt(1))
			rest.Add(rest, y)
		}
		if op == "%" {
			z = rest
		}
	default: // "**"
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
	}
	return small(z), nil
}

func floatOf(x *big.Int) float64 { f, _ := float(x); return f }

func floats(op string, f, g float64) (any, error) {
	if g == 0 && (op == "/" || op == "//" || op == "%") {
		return nil, errors.New("division by zero")
	}
	switch op {
	case "+":
		return f + g, nil
	case "-":
		return f - g, nil
	case "*":
		return f * g, nil
	case "/":
		return f / g, nil
	case "//":
		return math.Floor(f / g), nil
	case "%":
		rest := math.Mod(f, g)
		if rest != 0 && (rest < 0) != (g < 0) {
			rest += g
		}
		return rest, nil
	}
	return math.Pow(f, g), nil // "**"
}
