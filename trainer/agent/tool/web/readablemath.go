package web

import (
	"regexp"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// formula returns the text of a formula: the LaTeX in its markup, or its MathML on one line. It returns "" if the
// element is not a formula.
func formula(n *html.Node) string {
	switch {
	case n.Type != html.ElementNode:
		return ""
	case n.DataAtom == atom.Script && strings.HasPrefix(attribute(n, "type"), "math/tex"):
		if n.FirstChild != nil {
			return strings.TrimSpace(n.FirstChild.Data)
		}
	case n.DataAtom == atom.Img && !isHidden(n) && formulaImage(n) && !repeatsFormula(n):
		return withoutStyle(attribute(n, "alt"))
	case n.DataAtom == atom.Math || n.Namespace == "math" && n.Data == "math":
		if text := withoutStyle(attribute(n, "alttext")); text != "" {
			return text
		}
		if tex := find(n, func(n *html.Node) bool {
			return n.Data == "annotation" && strings.Contains(attribute(n, "encoding"), "tex")
		}); tex != nil && tex.FirstChild != nil {
			return withoutStyle(tex.FirstChild.Data)
		}
		return strings.Join(strings.Fields(mathML(n, 0)), " ")
	}
	return ""
}

// formulaImage reports whether an image shows the formula in its alternative text.
func formulaImage(n *html.Node) bool {
	class := strings.ToLower(attribute(n, "class"))
	return strings.Contains(class, "math") || strings.Contains(class, "latex") || class == "tex"
}

// nearNodes is the number of nodes next to an image, in each direction, that are searched for its formula.
const nearNodes = 100

// repeatsFormula reports whether an image repeats the formula next to it for browsers without MathML.
func repeatsFormula(n *html.Node) bool {
	if !strings.Contains(attribute(n, "class"), "fallback") {
		return false
	}
	before, after := nearNodes, nearNodes
	for s := n.PrevSibling; s != nil && before > 0; s = s.PrevSibling {
		if hasMath(s, &before) {
			return true
		}
	}
	for s := n.NextSibling; s != nil && after > 0; s = s.NextSibling {
		if hasMath(s, &after) {
			return true
		}
	}
	return false
}

// hasMath reports whether an element is or contains MathML. It visits at most `*budget` nodes.
func hasMath(n *html.Node, budget *int) bool {
	if *budget--; n.Data == "math" {
		return true
	}
	for c := n.FirstChild; c != nil && *budget > 0; c = c.NextSibling {
		if hasMath(c, budget) {
			return true
		}
	}
	return false
}

// withoutStyle removes the command that displays a formula on its own line from LaTeX.
func withoutStyle(tex string) string {
	tex = strings.TrimSpace(tex)
	if inner, ok := strings.CutPrefix(tex, `{\displaystyle`); ok && strings.HasSuffix(inner, "}") {
		tex = strings.TrimSpace(inner[:len(inner)-1])
	}
	return tex
}

// maxMathDepth is the deepest nesting of MathML that is read.
const maxMathDepth = 100

// mathML writes MathML on one line, with ^ for raised parts, _ for lowered parts and / for fractions.
func mathML(n *html.Node, depth int) string {
	if n.Type == html.TextNode {
		return strings.TrimSpace(n.Data)
	}
	if depth > maxMathDepth || n.Data == "annotation" || n.Data == "annotation-xml" || n.Data == "mphantom" {
		return ""
	}
	var parts []string
	for c := range n.ChildNodes() {
		if c.Type == html.TextNode && strings.TrimSpace(c.Data) == "" || c.Type == html.CommentNode {
			continue
		}
		parts = append(parts, mathML(c, depth+1))
	}
	part := func(i int) string {
		if i >= len(parts) {
			return ""
		}
		if len([]rune(parts[i])) <= 1 || digits.MatchString(parts[i]) {
			return parts[i]
		}
		return "(" + parts[i] + ")"
	}
	switch n.Data {
	case "mfrac":
		return fraction(n, part(0), part(1))
	case "msup", "mover":
		return part(0) + "^" + part(1)
	case "msub", "munder":
		return part(0) + "_" + part(1)
	case "msubsup", "munderover":
		return part(0) + "_" + part(1) + "^" + part(2)
	case "mmultiscripts":
		return multiscripts(n, part)
	case "mfenced":
		return fenced(n, parts)
	case "menclose":
		if strings.Contains(attribute(n, "notation"), "strike") {
			return "~~" + strings.Join(parts, "") + "~~"
		}
	case "maction":
		return strings.Join(parts[:min(len(parts), 1)], "") // browsers show only the first part before an action
	case "msqrt":
		return "√(" + strings.Join(parts, "") + ")"
	case "mroot":
		return part(0) + "^(1/" + part(1) + ")"
	case "mtd":
		return strings.Join(parts, "") + " "
	case "mtr", "mlabeledtr":
		return strings.Join(parts, "") + "; "
	case "mo":
		if text := strings.Join(parts, ""); text != "\u2062" && text != "\u2061" && text != "\u2063" { // invisible operators
			return text
		}
		return " "
	case "mspace", "mtext":
		return " " + strings.Join(parts, "") + " "
	}
	return strings.Join(parts, "")
}

// noLine matches a thickness of 0, with or without a unit.
var noLine = regexp.MustCompile(`^\s*0*\.?0+\s*(?:[a-z]+|%)?\s*$`)

// fraction writes a fraction or, if it has no line, a binomial or lines of conditions, in braces that separate it from numbers beside it.
func fraction(n *html.Node, above, below string) string {
	if noLine.MatchString(attribute(n, "linethickness")) {
		return "{" + above + ` \atop ` + below + "}"
	}
	return " " + above + "/" + below + " "
}

// multiscripts writes a base with the lowered and raised parts before and after it, such as _92^235U.
func multiscripts(n *html.Node, part func(int) string) string {
	var before, after strings.Builder // a page may have very many parts
	side, marks, i := &after, "_^", 0
	for c := range n.ChildNodes() {
		if c.Type != html.ElementNode {
			continue
		}
		if i++; i == 1 {
			continue // the base
		}
		if c.Data == "mprescripts" {
			side, marks = &before, "_^"
			continue
		}
		if text := part(i - 1); text != "" {
			side.WriteString(marks[:1] + text)
		}
		marks = marks[1:] + marks[:1]
	}
	return before.String() + part(0) + after.String()
}

// fenced returns the parts in brackets, with commas between them unless the element names other separators.
func fenced(n *html.Node, parts []string) string {
	mark := func(key, usual string) string {
		if v, ok := attributeOf(n, key); ok {
			return v
		}
		return usual
	}
	return mark("open", "(") + strings.Join(parts, mark("separators", ",")) + mark("close", ")")
}
