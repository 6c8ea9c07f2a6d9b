package web

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

func isSuperscript(n *html.Node) bool {
	return n.Namespace == "" && n.DataAtom == atom.Sup || shifted(n, superscriptStyle, movedUp) || hasClass(n, "sup", "superscript", "exponent")
}

func isSubscript(n *html.Node) bool {
	return n.Namespace == "" && n.DataAtom == atom.Sub || shifted(n, subscriptStyle, movedDown) || hasClass(n, "sub", "subscript")
}

var (
	superscriptStyle = regexp.MustCompile(`vertical-align:(?:super|\+?[0.]*[1-9])`)
	subscriptStyle   = regexp.MustCompile(`vertical-align:(?:sub|-[0.]*[1-9])`)
	movedUp          = regexp.MustCompile(`(?:^|;)(?:top:-|bottom:)[0.]*[1-9]`)
	movedDown        = regexp.MustCompile(`(?:^|;)(?:bottom:-|top:)[0.]*[1-9]`)
)

// shifted reports whether an element's own style raises or lowers it on its line.
func shifted(n *html.Node, aligned, moved *regexp.Regexp) bool {
	style := attribute(n, "style")
	if style == "" || n.DataAtom != atom.Span && n.DataAtom != atom.Small && n.DataAtom != atom.B && n.DataAtom != atom.I {
		return false
	}
	style = strings.ReplaceAll(strings.ToLower(style), " ", "")
	return aligned.MatchString(style) || strings.Contains(style, "position:relative") && moved.MatchString(style)
}

// hasClass reports whether an inline element has one of some classes.
func hasClass(n *html.Node, names ...string) bool {
	return n.DataAtom == atom.Span && slices.ContainsFunc(strings.Fields(strings.ToLower(attribute(n, "class"))),
		func(c string) bool { return slices.Contains(names, c) })
}

// isNote reports whether raised text is the number of a note: all of it is a link within the page, or the whole text of such a link.
func isNote(n *html.Node) bool {
	link := func(n *html.Node) bool {
		return n != nil && n.DataAtom == atom.A && strings.HasPrefix(attribute(n, "href"), "#")
	}
	alone := func(n *html.Node) bool { return n != nil && n.PrevSibling == nil && n.NextSibling == nil }
	return link(n.FirstChild) && alone(n.FirstChild) || alone(n) && link(n.Parent)
}

var (
	simple = regexp.MustCompile(`^[-+−–]?[\pL\pN.,]+$`)
	// A note, a sign, or the ending of an ordinal.
	wordless  = regexp.MustCompile(`^(?:\[.*\]|\(.*\)|[^\pL\pN]+|st|nd|rd|th|er|re|e|o|a|º|ª)$`)
	chemistry = regexp.MustCompile(`(?:^|[^\pL])(?:\pL|(?:[A-Z][a-z]?)+|.*\))$`)
	digits    = regexp.MustCompile(`^\d+$`)
	cents     = regexp.MustCompile(`^\d\d$`)
	price     = regexp.MustCompile(`[$€£]\d[\d,]*$`)

	powerOfTen = regexp.MustCompile(`[$€£]10$`) // not a price with cents
)

// shift writes raised or lowered text with a mark before it, so that 10 to the power of 15 becomes 10^15 instead of
// 1015. It writes no mark before raised text that is not a power, such as [1], or before the number in a chemical
// formula, such as H2O.
func (r *renderer) shift(n *html.Node, mark string) {
	text := r.inner(n, false)
	switch {
	case text == "":
		return
	case mark == "^" && isNote(n) && digits.MatchString(text):
		text = "[" + text + "]"
	case mark == "^" && cents.MatchString(text) && !r.space && price.MatchString(r.tail()) && !powerOfTen.MatchString(r.tail()):
		text = "." + text // $49 with raised cents
	case isFractionPart(n):
		r.space = r.space || mark == "^" && unicode.IsDigit(r.last) // a mixed fraction
	case mark == "^" && wordless.MatchString(text), r.last == 0, r.wants > 0, r.space && mark == "_":
	case mark == "_" && digits.MatchString(text) && chemistry.MatchString(r.tail()) && !unicode.IsDigit(followingRune(n)):
	default:
		if !simple.MatchString(text) || unicode.IsDigit(followingRune(n)) {
			text = "(" + text + ")"
		}
		r.space = r.space && beginsWord(r.last, followingRune(n))
		text = mark + text
	}
	r.word(text)
}

// beginsWord reports whether raised text after a space begins a word, as in an isotope, dating, ²³⁵U, instead of belonging to the word
// before it, as in 10 ⁸. before and after are the characters next to the space and to the raised text.
func beginsWord(before, after rune) bool {
	switch {
	case unicode.IsDigit(before), strings.ContainsRune(")]}", before):
		return false
	}
	return !unicode.IsLetter(before) || unicode.IsLetter(after)
}

// struckElements lists the elements whose text is no longer valid.
var struckElements = []atom.Atom{atom.Del, atom.S, atom.Strike}

var lineThrough = regexp.MustCompile(`(?:^|;)text-decoration(?:-line)?:[^;]*line-through`)

// isStruck reports whether an element's text is struck, by the element or by its own style.
func isStruck(n *html.Node) bool {
	style := attribute(n, "style")
	return slices.Contains(struckElements, n.DataAtom) ||
		style != "" && n.DataAtom != atom.Pre && lineThrough.MatchString(strings.ReplaceAll(strings.ToLower(style), " ", ""))
}

// strike writes the text of a struck element between marks, on one line.
func (r *renderer) strike(n *html.Node) {
	cell, ends := r.cell, lineEnds(n)
	r.line(ends)
	r.begin(n)
	text := r.inner(n, r.links)
	if address := r.address(n); address != "" && text != "" {
		text = "[" + text + "](" + address + ")"
	}
	if text != "" {
		r.word("~~" + text + "~~")
	}
	r.cell = cell
	r.line(ends)
}

// reading writes the reading of the characters before it in brackets.
func (r *renderer) reading(n *html.Node) {
	if text := r.inner(n, r.links); text != "" {
		r.space = false
		r.word("(" + text + ")")
	}
}

// tail returns the end of the text so far, starting after the last space.
func (r *renderer) tail() string {
	const maxTail = 32
	text := r.out.String()
	text = text[max(0, len(text)-maxTail):]
	return text[strings.LastIndexAny(text, " \n")+1:]
}

// followingRune returns the first character of the text that directly follows an element, or 0.
func followingRune(n *html.Node) rune {
	if n.NextSibling == nil {
		return 0
	}
	for first := n.NextSibling; first != nil; first = first.FirstChild {
		if first.Type == html.TextNode {
			for _, c := range first.Data {
				return c
			}
		}
	}
	return 0
}

// isFractionPart reports whether raised or lowered text is the numerator or denominator of a fraction with a slash.
func isFractionPart(n *html.Node) bool {
	slash := func(n *html.Node) bool {
		return n != nil && n.Type == html.TextNode && (n.Data == "/" || n.Data == "⁄")
	}
	if isSuperscript(n) {
		return slash(n.NextSibling) && n.NextSibling.NextSibling != nil && isSubscript(n.NextSibling.NextSibling)
	}
	return slash(n.PrevSibling) && n.PrevSibling.PrevSibling != nil && isSuperscript(n.PrevSibling.PrevSibling)
}

// marker returns the mark before an item of a list: a dash, or the item's number.
func (r *renderer) marker(n *html.Node) string {
	list := n.Parent
	if list == nil || list.DataAtom != atom.Ol {
		return "-"
	}
	step := 1
	if _, turned := attributeOf(list, "reversed"); turned {
		step = -1
	}
	if r.counted == nil {
		r.counted = map[*html.Node]int{}
	}
	at, begun := r.counted[list]
	if at += step; !begun {
		at = firstNumber(list, step)
	}
	if value, err := strconv.Atoi(attribute(n, "value")); err == nil {
		at = value
	}
	r.counted[list] = at
	return numeral(at, cmp.Or(attribute(n, "type"), attribute(list, "type"))) + "."
}

// firstNumber returns the number of the first item of a list.
func firstNumber(list *html.Node, step int) int {
	if start, err := strconv.Atoi(attribute(list, "start")); err == nil {
		return start
	}
	if step > 0 {
		return 1
	}
	items := 0
	for c := range list.ChildNodes() {
		if c.DataAtom == atom.Li {
			items++
		}
	}
	return items
}

// numeral writes the number of an item, as letters or in Roman numerals if the list has that type.
func numeral(n int, kind string) string {
	const letters = 26
	var text string
	switch {
	case strings.EqualFold(kind, "a") && n > 0:
		for ; n > 0; n = (n - 1) / letters {
			text = string(rune('a'+(n-1)%letters)) + text
		}
	case strings.EqualFold(kind, "i") && n > 0 && n < 4000:
		for i, value := range []int{1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1} {
			for ; n >= value; n -= value {
				text += [...]string{"m", "cm", "d", "cd", "c", "xc", "l", "xl", "x", "ix", "v", "iv", "i"}[i]
			}
		}
	default:
		return strconv.Itoa(n)
	}
	if kind == "A" || kind == "I" {
		text = strings.ToUpper(text)
	}
	return text
}
