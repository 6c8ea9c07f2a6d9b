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

// margin compares exact rational numbers.
type margin struct {
	tolerance *big.Rat
	relative  *big.Rat // fraction of the reference
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

// Number is a figure in its written form.
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

// ParseNumber reads the number that an answer states: the only number in the last \boxed{} or after the last ####, or otherwise the last
// number in the text. If there is an <answer> tag, only its content counts. The same holds for the JSON key "answer", unless a
// conclusion with a figure follows the key's object. Of a marked equation only the right side counts. ParseNumber reads thousands
// separators, signs, currencies, per cent, decimals, exponents, powers of ten, fractions and mixed fractions, as text and as LaTeX. The
// exponent of a unit, as in 50 cm^2, belongs to the unit. ok is false for a malformed figure (1,23 or 3-5 or 1/0), and for an operand of
// a formula (2 + 3, \binom{5}{2}, log(9)). It is also false for a root, for a power or fraction of anything but numbers, and for two
// numbers, a bound (x > 5) or a symbol after a mark.
func ParseNumber(s string) (Number, bool) {
	if len(s) > maxAnswer {
		s = strings.ToValidUTF8(s[len(s)-maxAnswer:], "")
	}
	s, otherwise := tagged(s)
	if otherwise != "" && !strings.ContainsFunc(s, unicode.IsDigit) {
		s = otherwise
	}
	content, isMarked := boxedOrHash(s)
	if isMarked {
		content = rightSide(content)
	} else {
		content = s
	}
	content = overFraction.ReplaceAllString(content, `\frac{$1}{$2}`)
	text := plain(content)
	if isMarked {
		text = quotient.ReplaceAllString(text, "$1/$2")
		text = spacedGroups.ReplaceAllStringFunc(strings.TrimSpace(text), func(s string) string { return strings.ReplaceAll(s, " ", "") })
		if strings.HasPrefix(text, "- ") {
			text = "-" + strings.TrimSpace(text[1:]) // a sign, not an item of a list
		}
	}
	found := scanNumbers(text, isMarked, isMarked && isBoxed(s))
	if len(found) == 0 || (isMarked && (len(found) > 1 || strings.ContainsAny(text, `^√π`) || symbolic.MatchString(content))) {
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
	figure  = regexp.MustCompile(`\d+ +\d+/\d+|(?:\d(?:[\d.,:/_'’-]*\d)?|\.\d+)(?:[eE][+-]?\d+\b)?`)
	decimal = regexp.MustCompile(`^(?:\d*\.)?\d+(?:[eE][+-]?\d{1,3})?$`)
	// Digits in groups: also 1_000, 1'000 and 1,00,000.
	grouped = regexp.MustCompile(`^(?:\d{1,3}(?:(?:,\d{3})+|(?:_\d{3})+|(?:['’]\d{3})+)|\d{1,2}(?:,\d{2})+,\d{3})(?:\.\d+)?$`)
	percent = regexp.MustCompile(`^\s*(?:%|(?:[Pp]er ?cent|pct)\b)`)

	quotient     = regexp.MustCompile(`(\d)\s*(?:÷|\\div)\s*(\d)`)
	spacedGroups = regexp.MustCompile(`^\d{1,3}(?: \d{3})+\b`) // at the beginning of a mark's content
	emphasis     = regexp.MustCompile(`(?:^|[\s(:])_{1,3}$`)   // Markdown's, before a figure
	inRoot       = regexp.MustCompile(`(?:√|\\sqrt\s*(?:\[[^\[\]]*\])?)[\s{(]*$`)
	notAlone     = regexp.MustCompile(`^(?:\s*(?:\^|\\cdot\s*\\(?:pi|sqrt)|\\pi\b|\\sqrt|π|√)|_(?:\d|\{\s*[\pL\d(])|[xX×CP]\d|\s*[万萬亿億만억]|[½¼¾⅓⅔⅛⅜⅝⅞])`)
)

// scanNumbers returns the numbers of a plain text in order. The Figure of an unreadable number is nil. The last
// number is unreadable if it is an operand of a formula, a bound in a marked text, or a factor in a boxed one.
func scanNumbers(s string, isMarked, isBoxed bool) (found []Number) {
	figures := figure.FindAllStringIndex(s, -1)
	for i, at := range figures {
		before, after := s[:at[0]], s[at[1]:]
		r, _ := utf8.DecodeLastRuneInString(before)
		open := strings.TrimRight(before, "{ ")
		if inName(r) || r == '_' && !emphasis.MatchString(before) || strings.HasSuffix(open, "_") && open != before {
			continue // part of a name, as in H2O and x_{12}
		}
		n := Number{Figure: readFigure(s[at[0]:at[1]]), Percent: percent.MatchString(after)}
		minus, unambiguous := negative(before)
		if strings.HasSuffix(open, "^") || inRoot.MatchString(before[max(0, len(before)-maxFigure):]) || notAlone.MatchString(after) || !unambiguous ||
			i == len(figures)-1 && (isOperand(before) || isMarked && isBound(before) || isBoxed && isTerm(before, after)) {
			n.Figure = nil
		}
		if n.Figure != nil && minus {
			n.Figure.Neg(n.Figure)
		}
		found = append(found, n)
	}
	return found
}

// inName reports whether a figure directly after the letter r belongs to a name. Chinese, Japanese, Korean and other scripts write figures
// directly after words.
func inName(r rune) bool { return unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic) }

// signWord matches text that ends with a sign as a word: "negative", or a "minus" that does not follow an operand.
var signWord = regexp.MustCompile(`(?i)(?:(?:^|[^\pL-])negative|` +
	`(?:^|[=:({,.\n]|\b(?:is|was|are|were|be|equals?|of|to|at|about|around|approximately|than|answer|reads?|gives?))[ \t*_$"]*minus)[ \t]+[$€£¥₹({]*$`)

// endsInSignWord reports whether signWord matches. It looks at the last word first, because an answer may have thousands of figures.
func endsInSignWord(before string) bool {
	text := strings.TrimRight(before, " \t$€£¥₹({")
	ends := func(word string) bool {
		return len(text) >= len(word) && strings.EqualFold(text[len(text)-len(word):], word)
	}
	if ends("负") || ends("負") || ends("マイナス") {
		return true
	}
	return (ends("minus") || ends("negative")) && signWord.MatchString(before[max(0, len(before)-maxFigure):])
}

// negative reports whether the text before a figure ends with a minus sign, before or after a currency or brackets, or with
// "negative" or "minus". A minus after a digit, a letter or a bracket is a subtraction. A minus with a space after it is a sign
// if it follows "=" or a similar symbol. At the beginning of a line it could also begin an item of a list; unambiguous is then false.
func negative(before string) (minus, unambiguous bool) {
	const currencies = "$€£¥₹"
	bare := strings.TrimRight(before, currencies+"({ ")
	if !strings.HasSuffix(bare, "-") {
		return endsInSignWord(before), true
	}
	spaced := strings.HasPrefix(before[len(bare):], " ")
	line := bare[:len(bare)-1]
	if opened := strings.TrimRight(line, "( "); opened != line && strings.HasSuffix(opened, "-") {
		return false, false // a minus before the bracket, too
	}
	bare = strings.TrimRight(line, currencies)
	r, _ := utf8.DecodeLastRuneInString(bare)
	if !spaced {
		return !inName(r) && !unicode.IsDigit(r) && r != ')' && r != '-', true
	}
	bare = strings.TrimRight(bare, " ")
	switch {
	case bare == "" || strings.HasSuffix(bare, "\n"):
		return false, false
	case strings.ContainsRune("=({[<>≈:,", rune(bare[len(bare)-1])), strings.HasSuffix(bare, " is"), strings.HasSuffix(bare, " equals"):
		return true, true
	}
	return false, true
}

// readFigure returns the value of a decimal, a fraction or a mixed fraction, or nil.
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

var groupMarks = strings.NewReplacer(",", "", "_", "", "'", "", "’", "")

func readDecimal(s string) *big.Rat {
	if grouped.MatchString(s) {
		s = groupMarks.Replace(s)
	}
	if !decimal.MatchString(s) {
		return nil
	}
	value, _ := new(big.Rat).SetString(s) // nil if it cannot be read
	return value
}
