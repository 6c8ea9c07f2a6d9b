package verify

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

var (
	latexText = regexp.MustCompile(`\\(?:text|mathrm|mathbf|textbf|textrm|textit|textsf|textnormal|mathsf|mathit|` +
		`mathtt|boldsymbol|bm|mbox|hbox|operatorname)\s*\{([^{}]*)\}`)
	latexNoise = strings.NewReplacer(`\$`, "$", `\%`, "%", `{,}`, ",", `\text{,}`, ",", `\mathord{,}`, ",", `\,`, "", `\!`, "", `\ `, " ", `\;`, " ", `\:`,
		" ", "~", " ", `\quad`, " ", `\qquad`, " ", `\left.`, "", `\right.`, "", `\left`, "", `\right`, "", "°", "",
		"−", "-", "–", "-", "‐", "-", "\u2011", "-", "‒", "-", "﹣", "-", "\u00a0", " ", "\u202f", " ", "\u2009", " ", "⁄", "/")
	// unseen matches commands whose argument is not text of the reader.
	unseen = regexp.MustCompile(`\\(?:[hv]space\*?|[hv]?phantom|tag)\s*\{[^{}]*\}`)
	// latexGroups matches a space that LaTeX or typography puts between thousands. zeros matches thousands after a plain space.
	latexGroups = regexp.MustCompile(`(\d)(?:\\[ ,;:!]|[~\x{a0}\x{202f}\x{2009}])+(\d{3})`)
	zeros       = regexp.MustCompile(`\b(\d{1,3}) ((?:000 )*000)\b`)
	degrees     = regexp.MustCompile(`\^\s*\{?\s*\\(?:circ|degree)\b\s*\}?|\\(?:degrees?|textdegree)\b`)
	ordinals    = regexp.MustCompile(`(\d)\s*\^\s*\{?\s*(?:\\(?:text|mathrm)\s*\{\s*)?(?:st|nd|rd|th)\b\s*\}{0,2}`)

	fractionPart  = `(?:\{\s*[({]?\s*([-+]?[\d.,]+)\s*[)}]?\s*\}|(\d))`
	latexFraction = regexp.MustCompile(`\\(?:[dtc]?frac|nicefrac|sfrac)\s*` + fractionPart + `\s*` + fractionPart)
	overFraction  = regexp.MustCompile(`\{?\s*\b([\d.,]+)\s*\\over\s*\{?\s*([\d.,]+)\s*\}?`)
	braceFraction = regexp.MustCompile(`(^|[^\^_}\])\pL])\{\s*([\d.,]+)\s*\}\s*/\s*\{?\s*([\d.,]+)\s*\}?`)
	unitFraction  = regexp.MustCompile(`\\[dtc]?frac\s*\{\s*(\pL+)([²³]?)\s*\}\s*\{\s*(\pL+)([²³]?)\s*\}`) // m/s²
	otherFraction = regexp.MustCompile(`\\(?:[dtc]?frac|nicefrac|sfrac)`)
	repeating     = regexp.MustCompile(`(\d*)\.(\d*)\s*\\(?:overline|bar|dot)\s*\{\s*(\d{1,50})\s*\}`)
	andHalf       = regexp.MustCompile(`(?i)(^|[^\d.,])(\d+)(?:-| )and(?:-| )(?:(a|one|two|three)(?:-| ))?(half|quarters?)\b( of\b)?`)
	andFraction   = regexp.MustCompile(`\b(\d+) and (?:a )?(\d+)/(\d+)\b`)
	spacedSlash   = regexp.MustCompile(`(\d) ?/ ?(\d)`)

	times      = `(?:×|\\times|\\cdot|⋅|·|\*|x)`
	powerOfTen = `\{?10\}?\s*(?:\^|\*\*)\s*(?:\{\s*([+-]?\d{1,3})\s*\}|([+-]?\d{1,3})\b)`
	scientific = regexp.MustCompile(`(\d)\s*` + times + `\s*` + powerOfTen)
	tenTo      = regexp.MustCompile(`(^|[^\d.,)}^\pL×⋅·*\s])(\s*)` + powerOfTen)
	afterWord  = regexp.MustCompile(`(\b(?:is|equals|about|of|answer|approximately)\b|\\(?:approx|le|ge|sim)\b)(\s*)` + powerOfTen)

	// raised matches a word with an exponent. The word may be a unit.
	raised       = regexp.MustCompile(`(^|[^\pL\\])(\pL+)(\.?\s*)\$?\^\s*(?:\{\s*([-+]?\d)\s*\}|([-+]?\d)\b)\$?`)
	superscripts = regexp.MustCompile(`(\d\}?)([⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)`)
	toSuper      = strings.NewReplacer("0", "⁰", "1", "¹", "2", "²", "3", "³", "4", "⁴", "5", "⁵", "6", "⁶", "7", "⁷", "8", "⁸", "9", "⁹", "+", "⁺", "-", "⁻")
	fromSuper    = strings.NewReplacer("⁰", "0", "¹", "1", "²", "2", "³", "3", "⁴", "4", "⁵", "5", "⁶", "6", "⁷", "7", "⁸", "8", "⁹", "9", "⁺", "+", "⁻", "-")
)

// typographic replaces wide digits and signs and single characters for fractions.
var typographic = strings.NewReplacer("０", "0", "１", "1", "２", "2", "３", "3", "４", "4", "５", "5", "６", "6", "７", "7", "８", "8", "９", "9", "．", ".", "，",
	",", "％", "%", "－", "-", "＄", "$", "℃", "°C", "℉", "°F", "µ", "μ",
	"½", " 1/2", "⅓", " 1/3", "⅔", " 2/3", "¼", " 1/4", "¾", " 3/4", "⅕", " 1/5", "⅖", " 2/5", "⅗", " 3/5", "⅘", " 4/5", "⅙", " 1/6", "⅚", " 5/6", "⅐",
	" 1/7", "⅛", " 1/8", "⅜", " 3/8", "⅝", " 5/8", "⅞", " 7/8", "⅑", " 1/9", "⅒", " 1/10")

// markup replaces HTML's exponents and indices with those of LaTeX.
var markup = strings.NewReplacer("<sup>", "^{", "</sup>", "}", "<sub>", "_{", "</sub>", "}")

// unreadable is a figure that is not a number. It replaces text that cannot be read as a number.
const unreadable = " 0_0 "

// plain replaces LaTeX and typographic forms with plain text. The exponent of a unit becomes a superscript: cm^2
// becomes cm². LaTeX that is not a number, such as a fraction of roots, becomes an unreadable figure.
func plain(s string) string {
	s = unseen.ReplaceAllString(markup.Replace(typographic.Replace(s)), " ")
	for range 3 { // neighbouring groups overlap, so one pass does not replace all
		s = latexGroups.ReplaceAllString(s, "$1$2")
	}
	s = latexNoise.Replace(ordinals.ReplaceAllString(degrees.ReplaceAllString(s, ""), "$1 "))
	for range 2 { // commands may be nested
		s = latexText.ReplaceAllString(s, " $1 ")
	}
	s = raisedDigits(s)
	s = zeros.ReplaceAllStringFunc(s, func(m string) string { return strings.ReplaceAll(m, " ", "") })
	s = unitFraction.ReplaceAllStringFunc(unitPowers(s), unitQuotient)
	s = repeating.ReplaceAllStringFunc(s, repeated)
	s = separated(fractions(s))
	s = braceFraction.ReplaceAllString(s, "$1$2/$3")
	s = scientific.ReplaceAllString(s, "${1}e$2$3")
	s = tenTo.ReplaceAllString(s, "${1}${2}1e$3$4")
	s = afterWord.ReplaceAllString(s, "${1}${2}1e$3$4")
	s = andHalf.ReplaceAllStringFunc(spacedSlash.ReplaceAllString(s, "$1/$2"), spelledFraction)
	return andFraction.ReplaceAllStringFunc(s, mixed)
}

var (
	commandFigure  = regexp.MustCompile(`\\[a-zA-Z]+[.\d]`)
	wordPoint      = regexp.MustCompile(`(^|[^\pL\\])(\pL+\.)(\d)`) // as in Rs.500 and No.5
	currencyFigure = regexp.MustCompile(`(^|[^\pL\pN\\])(-?)(USD|EUR|GBP|JPY|CNY|RMB|INR|CAD|AUD|NZD|SGD|HKD|CHF|SEK|NOK|DKK|KRW|MXN|BRL|ZAR|PKR|` +
		`IDR|MYR|THB|VND|[Rr]s|RM|[Kk]r)(\d)`)
)

// separated puts a space between a figure and the command, the abbreviation or the currency before it. Functions and symbols of a
// formula stay joined.
func separated(s string) string {
	s = commandFigure.ReplaceAllStringFunc(s, func(m string) string {
		if end := len(m) - 1; !symbolic.MatchString(m[:end]) {
			return m[:end] + " " + m[end:]
		}
		return m
	})
	return currencyFigure.ReplaceAllString(wordPoint.ReplaceAllString(s, "$1$2 $3"), "$1$3 $2$4")
}

// raisedDigits writes 10² as 10^{2}.
func raisedDigits(s string) string {
	return superscripts.ReplaceAllStringFunc(s, func(m string) string {
		at := strings.IndexFunc(m, func(r rune) bool { return r > '}' })
		return m[:at] + "^{" + fromSuper.Replace(m[at:]) + "}"
	})
}

// spelledFraction writes "2 and a half" as "2 1/2". In "10 and half of them" the fraction is not added to the number.
func spelledFraction(text string) string {
	m := andHalf.FindStringSubmatch(text)
	if m[5] != "" {
		return text
	}
	below := 4
	if strings.EqualFold(m[4], "half") {
		below = 2
	}
	return fmt.Sprintf("%s%s %d/%d", m[1], m[2], max(1, slices.Index([]string{"", "one", "two", "three"}, strings.ToLower(m[3]))), below)
}

// mixed writes "2 and 1/2" as "2 1/2". Other numbers with a fraction after "and" stay two numbers.
func mixed(text string) string {
	m := andFraction.FindStringSubmatch(text)
	if part := readFigure(m[2] + "/" + m[3]); part == nil || part.Cmp(big.NewRat(1, 1)) >= 0 {
		return text
	}
	return m[1] + " " + m[2] + "/" + m[3]
}

// shortUnits are the units with fewer than four letters that may have exponents, in addition to those in units. Other
// short words with an exponent are variables.
var shortUnits = strings.Fields("dm nm μm µm um pm hm dam sec rad mol hz pa kn ml cl dl sq ha bar ohm lbs px pt au ly")

// isUnit reports whether a word with an exponent is a unit rather than a variable.
func isUnit(word, exponent string, adjacent bool) bool {
	if runes := []rune(word); len(runes) == 1 {
		perUnit := strings.HasPrefix(exponent, "-") && strings.Contains("LlVACFTHMd", word) // variables are rarely written so
		return word == "m" || !adjacent && (perUnit || strings.Contains("shKgNJW", word))
	} else if len(runes) > 3 {
		return true
	}
	_, known := units[strings.ToLower(word)]
	return known || slices.Contains(shortUnits, strings.ToLower(word))
}

// unitPowers writes the exponents of units as superscripts.
func unitPowers(s string) string {
	var b strings.Builder
	end := 0
	for _, m := range raised.FindAllStringSubmatchIndex(s, -1) {
		before, word := s[m[2]:m[3]], s[m[4]:m[5]]
		adjacent := before != "" && before[0] >= '0' && before[0] <= '9'
		exponent := ""
		for _, group := range []int{8, 10} {
			if m[group] >= 0 {
				exponent = s[m[group]:m[group+1]]
			}
		}
		if !isUnit(word, exponent, adjacent) {
			continue
		}
		b.WriteString(s[end:m[5]] + toSuper.Replace(exponent) + " ")
		end = m[1]
	}
	return b.String() + s[end:]
}

// unitQuotient writes a fraction of two units with a slash.
func unitQuotient(fraction string) string {
	m := unitFraction.FindStringSubmatch(fraction)
	for _, word := range []string{m[1], m[3]} {
		_, known := units[strings.ToLower(word)]
		if !isUnit(word, "", true) && !known || strings.Contains("nvwjkcfdt", word) { // N is newton, n a variable, and d/t a speed
			return fraction
		}
	}
	return " " + m[1] + m[2] + "/" + m[3] + m[4] + " "
}

// repeated returns a decimal with repeating digits as a fraction.
func repeated(text string) string {
	m := repeating.FindStringSubmatch(text)
	if len(text) > maxFigure {
		return unreadable
	}
	first, _ := new(big.Int).SetString("0"+m[1]+m[2], 10)
	again, _ := new(big.Int).SetString(m[3], 10)
	ten := func(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }
	nines := new(big.Int).Sub(ten(len(m[3])), big.NewInt(1))
	numerator := new(big.Int).Add(new(big.Int).Mul(first, nines), again)
	return numerator.String() + "/" + new(big.Int).Mul(ten(len(m[2])), nines).String()
}

// fractions writes LaTeX's fractions as a/b. A fraction of anything but numbers, or with a digit directly after it,
// becomes unreadable.
func fractions(s string) string {
	var b strings.Builder
	end := 0
	for _, m := range latexFraction.FindAllStringSubmatchIndex(s, -1) {
		part := func(group int) string {
			if m[group] < 0 {
				group += 2
			}
			return s[m[group]:m[group+1]]
		}
		above, below := strings.TrimPrefix(part(2), "+"), strings.TrimPrefix(part(6), "+")
		if strings.HasPrefix(below, "-") {
			below = below[1:]
			if above = "-" + above; strings.HasPrefix(above, "--") {
				above = above[2:]
			}
		}
		written := above + "/" + below
		if m[0] > 0 && s[m[0]-1] >= '0' && s[m[0]-1] <= '9' {
			written = " " + written // a mixed fraction
		}
		if m[1] < len(s) && s[m[1]] >= '0' && s[m[1]] <= '9' {
			written = unreadable
		}
		b.WriteString(s[end:m[0]] + written)
		end = m[1]
	}
	s = b.String() + s[end:]
	for range maxFractions {
		at := otherFraction.FindStringIndex(s)
		if at == nil {
			return s
		}
		after := afterGroup(afterGroup(s[at[1]:]))
		s = s[:at[0]] + unreadable + after
	}
	return unreadable
}

// maxFractions is the largest number of other fractions in a text that are processed.
const maxFractions = 100

// afterGroup returns the text after the argument at the beginning of s: after a group in braces, or after one
// character.
func afterGroup(s string) string {
	s = strings.TrimLeft(s, " ")
	if !strings.HasPrefix(s, "{") {
		_, size := utf8.DecodeRuneInString(s)
		return s[size:]
	}
	_, after := group(s[1:])
	return after
}

// group returns the content of a group in braces, whose opening brace comes before s, and the text after it. Both are empty
// if no brace closes the group.
func group(s string) (content, after string) {
	depth := 1
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return s[:i], s[i+1:]
			}
		}
	}
	return "", ""
}
