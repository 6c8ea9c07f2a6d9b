package verify

import (
	"regexp"
	"strings"
)

// The patterns in this file find figures that are operands of a formula. The value of the formula is not computed, so such a figure is
// not the answer's number.
const (
	// functions are LaTeX's operators and relations that make another value, or no single value, out of the figures after them.
	functions = `sqrt|log|lg|ln|exp|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|pm|mp|[dt]?binom|choose|over|gcd|lcm|sum|prod|int|det|[bp]?mod|` +
		`lfloor|lceil|[lr]?vert|neq?|vec|hat|overrightarrow|Re|Im|Pr|arg|dim|ker`
	// symbols are LaTeX's letters and relations that do not belong to one number. \mu and \Omega are units.
	symbols = `infty|alpha|beta|[gG]amma|[dD]elta|(?:var)?epsilon|zeta|eta|(?:[tT]|vart)heta|iota|kappa|[lL]ambda|nu|[xX]i|[pP]i|(?:var)?rho|[sS]igma|tau|` +
		`[uU]psilon|(?:[pP]|varp)hi|chi|[pP]si|omega|hbar|ell|rfloor|rceil|mid|geq?(?:slant)?|leq?(?:slant)?|lt|gt|notin|in|cup|cap`
	// variable matches a letter that is rarely a unit. joined matches one that is rarely a unit directly behind a number, unlike 50p.
	variable = `[xyzwnie](?:[^\pL]|$)`
	joined   = `[abfjkqruv](?:[^\pL]|$)`
)

var (
	symbolic = regexp.MustCompile(`\\(?:` + functions + `|` + symbols + `)(?:[^a-zA-Z]|$)`)

	// operandAfter matches the text before a figure that is the right operand of a sum, a product or a quotient.
	operandAfter = regexp.MustCompile(`(?:(?:[\d)}\]%]|(?:^|[^\pL\\])\pL)[ \t]*(?:[+*×·÷]|\\(?:times|cdot|div)\b)|` +
		`[\d)}\]%][ \t]*[xX]|\d\*\*|(?:^|[^\pL])\pL/)[ \t]*[({]?$`)
	// addend matches the text in \boxed{} before a figure that is added to variables or subtracted from them.
	addend = regexp.MustCompile(`(?:^|[^\pL\\])\pL{1,2}[ \t]*[-+][ \t]*[({]?$`)
	// argument matches the text before a figure that is an argument of a function, such as log_2 and f(. Functions that are words stand
	// directly before the bracket, unlike in "the top floor (room 5)".
	argument = regexp.MustCompile(`\\(?:` + functions + `|max|min|sup|inf|lim)(?:[_^](?:\{[^{}]*\}|\w))?[\s({}\d]*$|` +
		`(?:\b(?:(?:sqrt|cbrt|log\d*|ln|exp|sin|cos|tan|abs|gcd|lcm|sgn)[ \t]*|floor|ceil|factorial|rank)|(?:^|[^\pL\\])[a-zA-Z])\([^()]*$|` +
		`\bmod(?:ulo)?[ \t]*$|(?:[±∓]|\+/-|分[之の])[ \t]*$`)
	// bounded matches the text before a figure that is a bound, and not a value.
	bounded = regexp.MustCompile(`(?:^|[^=\-<>])(?:[<>]=?|[≤≥≠])[ \t]*[-$({]*$`)
	tag     = regexp.MustCompile(`</?\pL[^<>]*>[ \t]*$`)

	// ofFormula matches the text after a figure in \boxed{} that is a factor or an argument.
	ofFormula = regexp.MustCompile(`^(?:!|[ \t]*[-+*/]?[ \t]*` + variable + `|` + joined + `|[ \t]*[-+*][ \t]*\pL(?:[^\pL]|$)|[ \t]*\|)`)
)

// isOperand reports whether the figure after this text is an operand of a formula.
func isOperand(before string) bool {
	before = before[max(0, len(before)-maxFigure):]
	return operandAfter.MatchString(before) || argument.MatchString(before)
}

// isBound reports whether the figure after this text is a bound, as in x > 5.
func isBound(before string) bool {
	before = before[max(0, len(before)-maxFigure):]
	return bounded.MatchString(before) && !tag.MatchString(before)
}

// isTerm reports whether the boxed figure between two texts is a factor, an argument or a term next to a variable.
func isTerm(before, after string) bool {
	return ofFormula.MatchString(after) || addend.MatchString(before)
}

// isBoxed reports whether boxedOrHash returns the content of \boxed{}.
func isBoxed(s string) bool { return strings.LastIndex(s, `\boxed{`) > lastHashes(s) }

var (
	relation    = regexp.MustCompile(`=|≈|\\approx(?:eq)?`)
	roundGroups = regexp.MustCompile(`\([^()]*\)|\[[^\[\]]*\]`)
	braceGroups = regexp.MustCompile(`\{[^{}]*\}`)
	// notOne matches the left side of a relation next to another relation, and again a middle part of two equations, as in x=5 y=6.
	notOne = regexp.MustCompile(`[;<>≤≥≠或和]|\\\\|\b(?:and|or)\b|\\(?:[lg]eq?(?:slant)?|lt|gt|neq?|l?or|land|vee|wedge|q?quad)(?:[^a-zA-Z]|$)`)
	again  = regexp.MustCompile(`\d(?:[\s}]|\\[a-zA-Z ,:;])[^=]*\pL[\pL\d_{}]*\s*$`)
	digit  = regexp.MustCompile(`(?:^|[^\^_.\d])\d`) // not an exponent or an index
)

// rightSide returns the text after the last "=" of an equation, or after an \approx without a number before it. Other texts, such as two
// equations, stay as they are.
func rightSide(s string) string {
	outer := blankOut(s, roundGroups)
	top := blankOut(outer, braceGroups)
	all := relation.FindAllStringIndex(top, -1)
	if len(all) == 0 {
		return s
	}
	begin, end := all[len(all)-1][0], all[len(all)-1][1]
	if strings.ContainsAny(top[max(0, begin-1):begin], "<>!:=") || strings.ContainsAny(top[end:min(end+1, len(s))], ">=") ||
		strings.Contains(top[:begin], ",") || notOne.MatchString(outer[:begin]) || len(all) > 1 && again.MatchString(top[:begin]) ||
		s[begin:end] != "=" && digit.MatchString(s[:begin]) {
		return s
	}
	if right := s[end:]; strings.ContainsAny(right, "0123456789") { // not 5 = x
		return right
	}
	return s
}

// blankOut replaces the groups that a pattern matches, and the groups around them, with spaces.
func blankOut(s string, groups *regexp.Regexp) string {
	for range 4 {
		s = groups.ReplaceAllStringFunc(s, func(m string) string { return strings.Repeat(" ", len(m)) })
	}
	return s
}
