package tool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
)

// Bounds of one calculation.
const (
	maxExpression = 2000 // bytes
	maxDepth      = 64   // nested parentheses, signs and powers
	maxBits       = 4096 // bits of a numerator or denominator: about 1,200 digits
	showDigits    = 15   // decimals of a rounded number that is not small
)

// Calculator evaluates arithmetic over exact rational numbers: + - * / % ^ with the usual precedence,
// parentheses, and the functions of calculatorFunctions. 0.1 + 0.2 is 0.3.
func Calculator() Tool {
	return Func("calculator", "Evaluates an arithmetic expression exactly.", "expression",
		"Numbers with + - * / % ^ and parentheses; abs, ceil, floor, max, min, round(x, digits), sqrt; pi. Example: (12.5 + 3) * 4 / 100",
		func(_ context.Context, expression string) (string, error) {
			v, err := evaluate(expression)
			if err != nil {
				return "", err
			}
			return FormatRational(v), nil
		})
}

// evaluate computes an expression in the calculator's syntax. The result is exact except for sqrt, pi and fractional
// exponents.
func evaluate(expression string) (*big.Rat, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("the expression is longer than %d bytes", maxExpression)
	}
	p := &arithmetic{rest: normalizeSigns.Replace(expression), whole: expression}
	v, err := p.sum()
	if err != nil {
		return nil, err
	}
	if p.skip(); p.rest != "" {
		return nil, p.unexpected()
	}
	return v, nil
}

var normalizeSigns = strings.NewReplacer("×", "*", "·", "*", "÷", "/", "−", "-", "–", "-", "**", "^")

// arithmetic is a recursive-descent parser that computes while it parses.
type arithmetic struct {
	rest, whole string
	depth       int
}

func (p *arithmetic) skip() { p.rest = strings.TrimLeft(p.rest, " \t\r\n") }

// take consumes the operator at the start of the rest if operators contains it, and returns it. Otherwise it returns 0.
func (p *arithmetic) take(operators string) byte {
	p.skip()
	if p.rest == "" || strings.IndexByte(operators, p.rest[0]) < 0 {
		return 0
	}
	op := p.rest[0]
	p.rest = p.rest[1:]
	return op
}

func (p *arithmetic) unexpected() error {
	if p.rest == "" {
		return errors.New("the expression ends too early")
	}
	hint := ""
	if p.rest[0] == ',' {
		hint = " (write numbers without thousands separators)"
	}
	return fmt.Errorf("cannot read %q%s", Truncate(p.rest, 40), hint)
}

func (p *arithmetic) sum() (*big.Rat, error)     { return p.chain("+-", p.product) }
func (p *arithmetic) product() (*big.Rat, error) { return p.chain("*/%", p.signed) }

// chain reads operands with left-associative operators between them.
func (p *arithmetic) chain(operators string, operand func() (*big.Rat, error)) (*big.Rat, error) {
	left, err := operand()
	for err == nil {
		op := p.take(operators)
		if op == 0 {
			return left, nil
		}
		p.skip()
		before := p.rest
		var right *big.Rat
		if right, err = operand(); err == nil {
			left, err = apply(op, left, right)
		} else if op == '%' && p.rest == before { // there is no operand
			err = fmt.Errorf("%w (%% is the remainder: write 15/100 for 15%%)", err)
		}
	}
	return nil, err
}

// signed reads signs, which bind more weakly than a power: -2^2 is -4.
func (p *arithmetic) signed() (*big.Rat, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("the expression is nested deeper than %d", maxDepth)
	}
	defer func() { p.depth-- }()
	switch p.take("+-") {
	case '-':
		v, err := p.signed()
		if err != nil {
			return nil, err
		}
		return new(big.Rat).Neg(v), nil
	case '+':
		return p.signed()
	}
	return p.power()
}

// power reads a right-associative power: 2^3^2 is 2^9.
func (p *arithmetic) power() (*big.Rat, error) {
	base, err := p.atom()
	if err != nil || p.take("^") == 0 {
		return base, err
	}
	exponent, err := p.signed()
	if err != nil {
		return nil, err
	}
	return apply('^', base, exponent)
}

func (p *arithmetic) atom() (*big.Rat, error) {
	p.skip()
	if p.rest == "" {
		return nil, p.unexpected()
	}
	switch c := p.rest[0]; {
	case c == '(':
		p.rest = p.rest[1:]
		v, err := p.sum()
		if err == nil && p.take(")") == 0 {
			err = errors.New("a parenthesis is not closed")
		}
		return v, err
	case c >= '0' && c <= '9' || c == '.':
		return p.number()
	case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		return p.name()
	}
	return nil, p.unexpected()
}

var (
	numeral = regexp.MustCompile(`^\d*(?:\.\d*)?(?:[eE][+-]?(\d+))?`) // its group is the exponent
	letters = regexp.MustCompile(`^[a-zA-Z]+`)
	// thousands matches digits that follow a separator of thousands. An argument does not begin so.
	thousands = regexp.MustCompile(`^0\d\d`)
)

func (p *arithmetic) number() (*big.Rat, error) {
	m := numeral.FindStringSubmatch(p.rest)
	if len(m[1]) > 3 {
		return nil, errTooLarge
	}
	v, ok := new(big.Rat).SetString(m[0])
	if !ok {
		return nil, p.unexpected()
	}
	p.rest = p.rest[len(m[0]):]
	return withinBits(v)
}

// name reads a constant or a call of a function.
func (p *arithmetic) name() (*big.Rat, error) {
	end := len(letters.FindString(p.rest))
	name := strings.ToLower(p.rest[:end])
	p.rest = p.rest[end:]
	if name == "pi" {
		return new(big.Rat).SetFloat64(math.Pi), nil
	}
	f, known := calculatorFunctions[name]
	if !known {
		return nil, fmt.Errorf("there is no function %q: use abs, ceil, floor, max, min, round, sqrt", name)
	}
	if p.take("(") == 0 {
		return nil, fmt.Errorf("%s needs its arguments in parentheses", name)
	}
	var args []*big.Rat
	for {
		v, err := p.sum()
		if err != nil {
			return nil, err
		}
		args = append(args, v)
		switch p.take(",)") {
		case ',':
			if thousands.MatchString(p.rest) { // max(1,000, 2) is not max(1, 0, 2)
				p.rest = "," + p.rest
				return nil, p.unexpected()
			}
			continue
		case ')':
			if len(args) < f.least || len(args) > f.most {
				return nil, fmt.Errorf("%s takes %d to %d arguments, not %d", name, f.least, f.most, len(args))
			}
			return f.call(args)
		}
		return nil, errors.New("a parenthesis is not closed")
	}
}
