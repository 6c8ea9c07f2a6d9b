package verify

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// margin compares exact rationals.
type margin struct {
	tolerance *big.Rat
	relative  *big.Rat // share of the reference
}

func newMargin(tolerance, relative float64) (margin, error) {
	for name, v := range map[string]float64{"tolerance": tolerance, "relative": relative} {
		if !(v >= 0) || math.IsInf(v, 0) {
			return margin{}, fmt.Errorf("verifier: %s %v: must be a finite number, 0 or more", name, v)
		}
	}
	return margin{new(big.Rat).SetFloat64(tolerance), new(big.Rat).SetFloat64(relative)}, nil
}

func newNumeric(tolerance, relative float64) (Verifier, error) {
	within, err := newMargin(tolerance, relative)
	if err != nil {
		return nil, err
	}
	return comparison(func(reference string, c Case) (bool, error) {
		want, ok := ParseNumber(reference)
		if !ok {
			return false, fmt.Errorf("verifier: numeric: the reference %.80q has no number", reference)
		}
		got, ok := ParseNumber(c.Attempt.Answer)
		return ok && within.equal(got, want), nil
	}), nil
}

// equal compares values. If exactly one side has a per cent sign, it also compares the figures as written: "50%" equals
// both 0.5 and 50.
func (v margin) equal(got, want Number) bool {
	return v.near(got.Value(), want.Value()) || (got.Percent != want.Percent && v.near(got.Figure, want.Figure))
}

func (v margin) near(got, want *big.Rat) bool {
	bound := new(big.Rat).Mul(v.relative, new(big.Rat).Abs(want))
	if bound.Cmp(v.tolerance) < 0 {
		bound = v.tolerance
	}
	d := new(big.Rat).Sub(got, want)
	return d.Abs(d).Cmp(bound) <= 0
}

// Number is a figure as written.
type Number struct {
	Figure  *big.Rat
	Percent bool
}

// Value returns the figure, divided by 100 if it has a per cent sign.
func (n Number) Value() *big.Rat {
	if !n.Percent {
		return n.Figure
	}
	return new(big.Rat).Quo(n.Figure, big.NewRat(100, 1))
}

// ParseNumber reads the number that an answer states: the only number in the last \boxed{} or after the last ####, else
// the last number in the text. It reads thousands separators, signs, currencies, per cent, decimals, exponents, fractions
// and mixed fractions. ok is false for a malformed figure (1,23 or 3-5 or 1/0), a root or a power, and for two numbers
// after a mark.
func ParseNumber(s string) (Number, bool) {
	if len(s) > maxAnswer {
		s = strings.ToValidUTF8(s[len(s)-maxAnswer:], "")
	}
	content, isMarked := marked(s)
	if !isMarked {
		content = s
	}
	found := scanNumbers(plain(content))
	if len(found) == 0 || (isMarked && (len(found) > 1 || strings.ContainsAny(plain(content), `^√π`) || symbolic.MatchString(content))) {
		return Number{}, false
	}
	last := found[len(found)-1]
	return last, last.Figure != nil
}

const (
	maxAnswer = 64 << 10 // bytes read from the end of an answer
	maxFigure = 400      // characters of one figure
)

var (
	figure   = regexp.MustCompile(`\d+ +\d+/\d+|(?:\d(?:[\d.,:/_-]*\d)?|\.\d+)(?:[eE][+-]?\d+\b)?`)
	decimal  = regexp.MustCompile(`^(?:\d*\.)?\d+(?:[eE][+-]?\d{1,3})?$`)
	grouped  = regexp.MustCompile(`^\d{1,3}(?:,\d{3})+(?:\.\d+)?$`)
	percent  = regexp.MustCompile(`^\s*(?:%|[Pp]er ?cent\b)`)
	symbolic = regexp.MustCompile(`\\(?:sqrt|pi|log|ln|sin|cos|tan|infty)\b`)

	latexFraction = regexp.MustCompile(`\\[dt]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}`)
	afterDigit    = regexp.MustCompile(`(\d)\\([dt]?frac)`)
	spacedSlash   = regexp.MustCompile(`(\d) ?/ ?(\d)`)
	scientific    = regexp.MustCompile(`(\d)\s*(?:×|\\times|\\cdot|\*|x)\s*10\s*\^\s*\{?\s*([+-]?\d{1,3})\b\s*\}?`)
	latexText     = regexp.MustCompile(`\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}`)
	latexNoise    = strings.NewReplacer(`\$`, "$", `\%`, "%", `{,}`, ",", `\,`, "", `\!`, "", `\ `, " ", `\;`, " ", `^\circ`, "", `^{\circ}`, "",
		"°", "", `\left`, "", `\right`, "", "−", "-", "–", "-", "\u00a0", "", "\u202f", "", "\u2009", "", "⁄", "/")
)

// plain replaces LaTeX and typographic forms by plain text.
func plain(s string) string {
	s = latexText.ReplaceAllString(latexNoise.Replace(s), " $1 ")
	s = afterDigit.ReplaceAllString(s, `$1 \$2`)
	s = latexFraction.ReplaceAllString(s, "$1/$2")
	s = scientific.ReplaceAllString(s, "${1}e$2")
	return spacedSlash.ReplaceAllString(s, "$1/$2")
}

// scanNumbers returns the numbers of a plain text in order. A number that cannot be read has no figure.
func scanNumbers(s string) (found []Number) {
	for _, at := range figure.FindAllStringIndex(s, -1) {
		before := s[:at[0]]
		r, _ := utf8.DecodeLastRuneInString(before)
		if unicode.IsLetter(r) || r == '_' {
			continue // part of a name, as in H2O
		}
		n := Number{Figure: readFigure(s[at[0]:at[1]]), Percent: percent.MatchString(s[at[1]:])}
		if strings.HasSuffix(strings.TrimRight(before, "{ "), "^") {
			n.Figure = nil
		}
		if n.Figure != nil && negative(before) {
			n.Figure.Neg(n.Figure)
		}
		found = append(found, n)
	}
	return found
}

// negative says whether the text before a figure ends with a minus sign, before or after a currency. A minus after a
// digit, a letter or a bracket is a subtraction.
func negative(before string) bool {
	before = strings.TrimRight(before, "$€£¥₹")
	if !strings.HasSuffix(before, "-") {
		return false
	}
	before = strings.TrimRight(before[:len(before)-1], "$€£¥₹")
	r, _ := utf8.DecodeLastRuneInString(before)
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != ')' && r != '-'
}

// readFigure returns the value of a decimal, a fraction or a mixed fraction, else nil.
func readFigure(s string) *big.Rat {
	if len(s) > maxFigure {
		return nil
	}
	if whole, rest, mixed := strings.Cut(s, " "); mixed {
		a, b := readFigure(whole), readFigure(strings.TrimSpace(rest))
		if a == nil || b == nil {
			return nil
		}
		return a.Add(a, b)
	}
	if numerator, denominator, isFraction := strings.Cut(s, "/"); isFraction {
		a, b := readDecimal(numerator), readDecimal(denominator)
		if a == nil || b == nil || b.Sign() == 0 {
			return nil
		}
		return a.Quo(a, b)
	}
	return readDecimal(s)
}

func readDecimal(s string) *big.Rat {
	if grouped.MatchString(s) {
		s = strings.ReplaceAll(s, ",", "")
	}
	if !decimal.MatchString(s) {
		return nil
	}
	value, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil
	}
	return value
}
