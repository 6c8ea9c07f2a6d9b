package verify

import (
	"math/big"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// newQuantity returns a verifier for references that are a number with a unit. The answer may have the same unit,
// another unit of the same dimension, or no unit, and so may the reference. tolerance is in the unit of the reference,
// or in the unit of the answer if the reference has none. Other references, including names that contain a number, are
// compared as normalised texts.
func newQuantity(tolerance, relative float64) (Verifier, error) {
	within, err := newMargin(tolerance, relative)
	if err != nil {
		return nil, err
	}
	texts := sameText(normalize)
	return comparison(func(reference string, c Case) (bool, error) {
		want, ok := parseQuantity(reference)
		if !ok || want.named {
			return texts(reference, c)
		}
		var got quantity
		for _, text := range conclusions(c.Attempt.Answer) {
			if got, ok = parseQuantity(text); ok {
				break
			}
		}
		switch {
		case !ok || got.decade != want.decade:
		case got.dimension == want.dimension:
			return within.near(got.in(want), want.written), nil
		case got.dimension == "" || want.dimension == "":
			return within.near(got.written, want.written), nil
		}
		return false, nil
	}), nil
}

// quantity is a number with its unit.
type quantity struct {
	written   *big.Rat // in the written unit
	size      *big.Rat // size of that unit, in the unit of the dimension
	dimension string   // dimension of the unit: m for lengths, m/s for speeds, or a unit that is not in units; "": no unit
	named     bool     // the text is a name with a number: Apollo 11, 20th Century Fox
	decade    bool     // the text is a decade: 1990s
}

// in returns q in the unit of o, which must have the same dimension.
func (q quantity) in(o quantity) *big.Rat {
	v := new(big.Rat).Mul(q.written, q.size)
	return v.Quo(v, o.size)
}

// parseQuantity reads a text that is a number with words before or after it, which are its unit. ok is false for a text
// without a number or with several numbers.
func parseQuantity(text string) (q quantity, ok bool) {
	text = unquoted(plain(withoutMath(text)))
	at := figure.FindAllStringIndex(text, -1)
	if len(at) != 1 || len(text) > maxFigure {
		return q, false
	}
	numbers := scanNumbers(text, false, false)
	if len(numbers) != 1 || numbers[0].Figure == nil {
		return q, false
	}
	q.written = numbers[0].Figure
	before, after := strings.TrimRight(text[:at[0][0]], " "), text[at[0][1]:]
	before = strings.TrimSuffix(before, "-")
	if end := decade.FindStringIndex(text[at[0][0]:]); end != nil {
		q.decade, after = true, text[at[0][0]+end[1]:]
	}
	q.named = ordinal.MatchString(after) || isTitle(after) || slices.ContainsFunc(unitWords(before), func(w string) bool {
		money := units[w].dimension
		return w != "%" && (money == "" || !strings.Contains(currencies, money))
	})
	factor := big.NewRat(1, 1)
	var names []string
	money := strings.ContainsAny(before, currencies)
	for _, w := range unitWords(before + " " + after) {
		if scale := moneyScales[w]; scale != "" && money && !slices.Contains(names, "per") { // $30/t is a price of tonnes
			w = scale
		}
		if n, ok := scales[w]; ok {
			factor.Mul(factor, n)
			continue
		}
		names = append(names, w)
	}
	q.written = new(big.Rat).Mul(q.written, factor)
	q.size, q.dimension = unitOf(names)
	return q, true
}

// inTitles lists the dimensions of units that are written with a capital without being part of a name, unlike 7 Year Itch and 10 N Main St.
const inTitles = " m kg s m³ m/s °C °F $ € £ ¥ ₹ "

// isTitle reports whether the text after a number has two words with a capital that are not units, as in 10 Downing Street.
func isTitle(after string) bool {
	capitals := 0
	for w := range strings.FieldsSeq(after) {
		if first, _ := utf8.DecodeRuneInString(w); !unicode.IsUpper(first) {
			continue
		}
		for _, name := range unitWords(w) {
			if !strings.Contains(inTitles, " "+units[name].dimension+" ") && scales[name] == nil && powers[name] == "" {
				capitals++
			}
		}
	}
	return capitals >= 2
}

// powers are the words for areas and volumes, with their exponents.
var powers = map[string]string{"square": "²", "sq": "²", "cubic": "³", "cu": "³"}

// unitOf returns the size and the dimension of the unit that some words name. It is a unit in
// units, its square or cube, a quotient of two units, or an unknown unit, which is its own dimension.
func unitOf(names []string) (size *big.Rat, dimension string) {
	if i := slices.Index(names, "per"); i > 0 && i < len(names)-1 && !slices.Contains(names[i+1:], "per") {
		above, of := unitOf(names[:i])
		below, by := unitOf(names[i+1:])
		return new(big.Rat).Quo(above, below), of + "/" + by
	}
	if n := len(names) - 1; n > 0 && strings.Contains(names[n], "⁻") { // m s⁻²
		name, power, _ := strings.Cut(names[n], "⁻")
		return unitOf(append(slices.Clone(names[:n]), "per", name+strings.TrimPrefix(power, "¹")))
	}
	if len(names) == 2 && names[0] == "degree" && units[names[1]].size != nil { // degrees Celsius
		names = names[1:]
	}
	if len(names) == 2 && powers[names[0]] != "" {
		names = []string{names[1] + powers[names[0]]}
	}
	dimension = strings.Join(names, " ")
	if u, ok := units[dimension]; ok {
		return u.size, u.dimension
	}
	for _, power := range []string{"²", "³"} {
		name, raised := strings.CutSuffix(dimension, power)
		u, ok := units[strings.TrimSuffix(name, "s")]
		if whole, exact := units[name]; exact {
			u, ok = whole, true
		}
		if !raised || !ok {
			continue
		}
		size = new(big.Rat).Mul(u.size, u.size)
		if power == "³" {
			size.Mul(size, u.size)
		}
		return size, u.dimension + power
	}
	return big.NewRat(1, 1), dimension
}

// unitWords returns the words around a number, in lower case and the singular, without filler words. Signs of
// currencies and of per cent are separate words.
func unitWords(text string) (words []string) {
	text = usDollar.Replace(strings.ToLower(text))
	for _, sign := range []string{"$", "€", "£", "¥", "₹", "¢", "%"} {
		text = strings.ReplaceAll(text, sign, " "+sign+" ")
	}
	text = strings.ReplaceAll(perCent.ReplaceAllString(text, "%"), "/", " per ")
	for w := range strings.FieldsSeq(text) {
		w = strings.Trim(w, ".,;:()~≈*_`!?-")
		if quantityFiller[w] {
			continue
		}
		if w = singular(w); w != "" && (w != "%" || len(words) == 0 || words[len(words)-1] != "%") {
			words = append(words, w)
		}
	}
	return words
}

// singular returns the singular of a unit, in a form that is the same for both: city and cities become city, movie and movies movy.
func singular(w string) string {
	one := strings.TrimSuffix(w, "s")
	if _, short := units[one]; !strings.HasSuffix(w, "ss") && (len(one) > 2 || len(one) == 2 && short) { // hrs, but not gas
		w = one
	}
	if stem, ok := strings.CutSuffix(w, "ie"); ok && len(w) > 3 {
		return stem + "y"
	}
	if sibilant.MatchString(w) { // boxe, inche
		return w[:len(w)-1]
	}
	return w
}

var sibilant = regexp.MustCompile(`(?:x|[cs]h|ss|z)e$`)

// decade matches the text from a number on if it names a decade, as in 1990s.
var decade = regexp.MustCompile(`^[12]\d\d0['’]?s\b`)

// currencies are the dimensions of units that stand before a number. Other words before a number belong to a name, as in Day 5.
const currencies = "$€£¥₹"

// unquoted returns a text without surrounding marks of emphasis, quotes and ends of sentences.
func unquoted(text string) string {
	text = strings.TrimRight(strings.Trim(text, " \n*_`"), ".!? ")
	for _, marks := range [][2]string{{`"`, `"`}, {"“", "”"}} {
		inner, opened := strings.CutPrefix(text, marks[0])
		if inner, closed := strings.CutSuffix(inner, marks[1]); opened && closed {
			text = strings.TrimRight(inner, ".!? ")
		}
	}
	return strings.Trim(text, " *_`")
}

// ordinal matches the text after the number in a name such as 20th Century Fox.
var ordinal = regexp.MustCompile(`^(?:st|nd|rd|th)\s+\pL`)

var (
	perCent  = regexp.MustCompile(`\b(?:per ?cent|pct)\b`)
	usDollar = strings.NewReplacer("us$", "$", "us dollar", "dollar", "u.s. dollar", "dollar")
)

var quantityFiller = map[string]bool{"a": true, "an": true, "the": true, "it": true, "is": true, "about": true, "around": true, "approximately": true,
	"of": true, "minus": true, "negative": true}

// scales are words that multiply a number.
var scales = map[string]*big.Rat{
	"thousand": big.NewRat(1e3, 1), "million": big.NewRat(1e6, 1), "billion": big.NewRat(1e9, 1), "trillion": big.NewRat(1e12, 1),
	"mn": big.NewRat(1e6, 1), "bn": big.NewRat(1e9, 1), "tn": big.NewRat(1e12, 1),
}

// moneyScales are letters that multiply an amount of money, as in $5M.
var moneyScales = map[string]string{"k": "thousand", "m": "million", "b": "billion", "t": "trillion"}

// units are the known units, which are converted within a dimension. Kelvin, Celsius, Fahrenheit and each currency are dimensions of their
// own, and so are years, whose days differ. The size is in the unit of the dimension. Case is ignored: MHz is also written mhz, and Mb is
// read as megabytes. mW and MW are left out, because both are common.
var units = unitTable()

type unit struct {
	size      *big.Rat
	dimension string
}

func unitTable() map[string]unit {
	table := map[string]unit{}
	for _, u := range []struct {
		dimension, names string // singular, separated by spaces
		size             string
	}{
		{"m", "m metre meter", "1"}, {"m", "km kilometre kilometer", "1000"}, {"m", "cm centimetre centimeter", "1/100"},
		{"m", "mm millimetre millimeter", "1/1000"},
		{"m", "μm um micrometre micrometer micron", "1/1000000"}, {"m", "nm nanometre nanometer", "1/1000000000"},
		{"m", "mi mile", "1609.344"}, {"m", "ft foot feet", "0.3048"}, {"m", "in inch", "0.0254"}, {"m", "yd yard", "0.9144"},
		{"kg", "kg kilogram kilogramme", "1"}, {"kg", "g gram gramme", "1/1000"}, {"kg", "t tonne", "1000"}, {"kg", "lb lbs pound", "0.45359237"},
		{"kg", "oz ounce", "0.028349523125"},
		{"s", "s sec second", "1"}, {"s", "min minute", "60"}, {"s", "h hr hour", "3600"}, {"s", "d day", "86400"}, {"s", "ms millisecond", "1/1000"},
		{"s", "wk week", "604800"}, {"m³", "l litre liter", "1/1000"}, {"m³", "ml millilitre milliliter", "1/1000000"}, {"m/s", "mph", "0.44704"},
		{"m/s", "kmh kph", "5/18"}, {"°C", "c celsiu", "1"}, {"°F", "f fahrenheit", "1"}, {"$", "¢ cent", "1/100"},
		{"yr", "yr year", "1"}, {"yr", "month", "1/12"}, {"yr", "decade", "10"}, {"yr", "century", "100"},
		{"m²", "ha hectare", "10000"}, {"m²", "acre", "4046.8564224"}, {"K", "k kelvin", "1"}, {"mol", "mol mole", "1"}, {"ohm", "ohm ω", "1"},
		{"N", "n newton", "1"}, {"N", "kn kilonewton", "1000"}, {"J", "j joule", "1"}, {"J", "kj kilojoule", "1000"}, {"V", "v volt", "1"},
		{"V", "kv kilovolt", "1000"},
		{"W", "w watt", "1"}, {"W", "kw kilowatt", "1000"}, {"Pa", "pa pascal", "1"}, {"Pa", "hpa hectopascal", "100"}, {"Pa", "kpa kilopascal", "1000"},
		{"Hz", "hz hertz", "1"}, {"Hz", "khz kilohertz", "1000"}, {"Hz", "mhz megahertz", "1000000"}, {"Hz", "ghz gigahertz", "1000000000"},
		{"B", "byte", "1"}, {"B", "kb kilobyte", "1000"}, {"B", "mb megabyte", "1000000"}, {"B", "gb gigabyte", "1000000000"},
		{"B", "tb terabyte", "1000000000000"},
		{"$", "$ usd dollar", "1"}, {"€", "€ eur euro", "1"}, {"£", "£ gbp", "1"}, {"¥", "¥ jpy yen", "1"}, {"₹", "₹ inr rs rupee", "1"},
	} {
		size, _ := new(big.Rat).SetString(u.size) // the table's own sizes can be read
		for name := range strings.FieldsSeq(u.names) {
			table[name] = unit{size, u.dimension}
		}
	}
	return table
}
