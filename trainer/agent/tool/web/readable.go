package web

import (
	"cmp"
	"io"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// readable returns the text of an HTML page as a reader sees it. It has title, headings, paragraphs, numbered
// lists, tables with one line per row, raised and lowered text with a mark, and formulas as LaTeX. It omits
// scripts, menus and the like. If links is true, a link is written as [text](address) with an absolute address.
func readable(text io.Reader, page *url.URL, links bool) (string, error) {
	root, err := html.Parse(text)
	if err != nil {
		return "", err
	}
	r := &renderer{page: page, base: page, links: links}
	if first := find(root, func(n *html.Node) bool { return n.DataAtom == atom.Base && attribute(n, "href") != "" }); first != nil {
		if to := resolve(page, attribute(first, "href")); to != nil {
			r.base = to
		}
	}
	if title := find(root, func(n *html.Node) bool { return n.DataAtom == atom.Title }); title != nil {
		r.render(title)
		r.line(2)
	}
	main := mainPart(root)
	begin := r.out.Len()
	if r.render(main); r.out.Len() == begin { // an empty place for a script's output
		r.render(bodyOf(root))
	}
	return strings.TrimSpace(r.out.String()), nil
}

// mainPart returns the element with the page's main content, if the page marks one: main, its only article, or its
// body.
func mainPart(root *html.Node) *html.Node {
	isMain := func(n *html.Node) bool {
		return (n.DataAtom == atom.Main || attribute(n, "role") == "main") && !isHidden(n)
	}
	if main := find(root, isMain); main != nil {
		return main
	}
	var articles []*html.Node
	find(root, func(n *html.Node) bool {
		if n.DataAtom == atom.Article {
			articles = append(articles, n)
		}
		return len(articles) > 1
	})
	if len(articles) == 1 {
		return articles[0]
	}
	return bodyOf(root)
}

func bodyOf(root *html.Node) *html.Node {
	return cmp.Or(find(root, func(n *html.Node) bool { return n.DataAtom == atom.Body }), root)
}

// find returns the first element, in the page's order, for which matches returns true, or nil.
func find(root *html.Node, matches func(*html.Node) bool) *html.Node {
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && matches(n) {
			return n
		}
	}
	return nil
}

func attribute(n *html.Node, key string) string {
	value, _ := attributeOf(n, key)
	return value
}

// attributeOf returns an attribute and reports whether it exists.
func attributeOf(n *html.Node, key string) (string, bool) {
	for _, a := range n.Attr {
		if a.Namespace == "" && a.Key == key {
			return a.Val, true
		}
	}
	return "", false
}

var (
	skippedElements = []atom.Atom{atom.Script, atom.Style, atom.Noscript, atom.Template, atom.Svg, atom.Iframe, atom.Object, atom.Nav,
		atom.Footer, atom.Aside, atom.Button, atom.Select, atom.Textarea, atom.Dialog, atom.Head, atom.Rp}
	blocks = []atom.Atom{atom.P, atom.Div, atom.Section, atom.Article, atom.Main, atom.Header, atom.Blockquote, atom.Ul, atom.Ol, atom.Dl,
		atom.Table, atom.Pre, atom.Figure, atom.Form, atom.Fieldset, atom.Details, atom.Address, atom.Center, atom.Dir, atom.Hgroup, atom.Legend, atom.Menu,
		atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6}
	// ownLines are declarations that give an element lines of its own.
	ownLines = []string{"display:block", "display:flex", "display:grid", "display:table", "display:list-item", "display:flow-root"}
	lines    = []atom.Atom{atom.Footer, atom.Li, atom.Dt, atom.Dd, atom.Tr, atom.Caption, atom.Summary, atom.Figcaption, atom.Br, atom.Hr, atom.Option}
)

// maxReadable is the largest number of bytes in a page's text. The addresses of links can make the text longer than the
// page.
const maxReadable = 4 << 20

// renderer writes text with at most one space between words and at most one empty line between blocks.
type renderer struct {
	out   strings.Builder
	page  *url.URL
	base  *url.URL // base of relative addresses
	links bool
	space bool // a space is due before the next word
	wants int  // number of line ends due before the next word
	exact bool // inside pre
	cell  bool // inside a cell of a table, which is written on one line
	broke bool // a line end before the next word was suppressed because it is inside a cell

	last          rune               // last character written
	spanningCells []spanningCell     // cells of earlier rows of the table that reach into the next
	counted       map[*html.Node]int // number of the last item of each ordered list
}

// inner returns the text of an element's children, on one line.
func (r *renderer) inner(n *html.Node, links bool) string {
	within := &renderer{page: r.page, base: r.base, links: links, cell: true, last: r.last}
	for c := range n.ChildNodes() {
		within.render(c)
	}
	return strings.TrimSpace(within.out.String())
}

// render writes an element and everything in it.
func (r *renderer) render(n *html.Node) {
	switch {
	case r.out.Len() > maxReadable:
		return
	case n.Type == html.TextNode:
		r.text(n.Data)
		return
	case n.Type != html.ElementNode:
	case formula(n) != "":
		r.text(formula(n))
		return
	case slices.Contains(skippedElements, n.DataAtom) && !isSource(n) || isHidden(n):
		return
	case isSuperscript(n):
		r.shift(n, "^")
		return
	case isSubscript(n):
		r.shift(n, "_")
		return
	case n.DataAtom == atom.Rt:
		r.reading(n)
		return
	case n.DataAtom == atom.Tr && find(n, func(n *html.Node) bool { return n.DataAtom == atom.Table }) == nil:
		r.line(1)
		r.row(n)
		r.line(1)
		return
	case isStruck(n) && inline(n):
		r.strike(n)
		return
	}
	exact, cell, spans := r.exact, r.cell, r.spanningCells
	ends := lineEnds(n)
	switch n.DataAtom {
	case atom.Table:
		r.cell, r.spanningCells = false, nil
	case atom.Thead, atom.Tbody, atom.Tfoot:
		r.spanningCells = nil
	}
	r.line(ends)
	r.begin(n)
	address := r.address(n)
	if address != "" {
		r.word("[")
	}
	for c := range n.ChildNodes() {
		r.render(c)
	}
	if address != "" {
		r.space, r.wants = false, 0
		r.word("](" + address + ")")
	}
	r.exact, r.cell = exact, cell
	if n.DataAtom == atom.Table {
		r.spanningCells = spans
	}
	r.line(ends)
}

// lineEnds returns the number of line ends before and after an element.
func lineEnds(n *html.Node) int {
	switch {
	case slices.Contains(blocks, n.DataAtom):
		return 2
	case slices.Contains(lines, n.DataAtom), slices.ContainsFunc(ownLines, func(d string) bool { return hasStyle(n, d) }):
		return 1
	}
	return 0
}

// inline reports whether an element contains no blocks.
func inline(n *html.Node) bool {
	return find(n, func(n *html.Node) bool {
		return slices.Contains(blocks, n.DataAtom) || slices.Contains(lines, n.DataAtom)
	}) == nil
}

// begin writes the mark before the text of an element.
func (r *renderer) begin(n *html.Node) {
	switch n.DataAtom {
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		r.word(strings.Repeat("#", int(n.Data[1]-'0')))
		r.space = true
	case atom.Li:
		r.word(r.marker(n))
		r.space = true
	case atom.Td, atom.Th:
		for before := n.PrevSibling; before != nil; before = before.PrevSibling {
			if before.Type == html.ElementNode {
				r.text(" | ")
				break
			}
		}
		r.cell = true
	case atom.Pre:
		r.exact = true
	}
}

// isSource reports whether an element is the footer of a quotation, which names its author.
func isSource(n *html.Node) bool {
	return n.DataAtom == atom.Footer && n.Parent != nil && n.Parent.DataAtom == atom.Blockquote
}

// isHidden reports whether a page hides an element from its readers.
func isHidden(n *html.Node) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool {
		return a.Key == "hidden" || a.Key == "aria-hidden" && a.Val == "true" || a.Key == "role" && a.Val == "navigation"
	}) || hasStyle(n, "display:none") && find(n, func(n *html.Node) bool { return formula(n) != "" }) == nil || hasStyle(n, "visibility:hidden")
}

// hasStyle reports whether an element's own style contains a declaration.
func hasStyle(n *html.Node, declaration string) bool {
	style := attribute(n, "style")
	return style != "" && strings.Contains(strings.ReplaceAll(strings.ToLower(style), " ", ""), declaration)
}

// address returns the address of a link. It returns "" if links are not requested or the link leads to the same page.
func (r *renderer) address(n *html.Node) string {
	if !r.links || n.DataAtom != atom.A {
		return ""
	}
	to := resolve(r.base, attribute(n, "href"))
	if to == nil || to.Scheme != "http" && to.Scheme != "https" {
		return ""
	}
	to.Fragment, to.RawFragment = "", ""
	if to.String() == r.page.String() {
		return ""
	}
	return to.String()
}

// resolve returns the absolute address of a reference, or nil if the reference is invalid or too long to be visited.
func resolve(base *url.URL, reference string) *url.URL {
	if len(reference) > maxAddress {
		return nil
	}
	to, err := base.Parse(strings.TrimSpace(reference))
	if err != nil {
		return nil
	}
	return to
}

// line ends the line. If ends is 2, an empty line follows.
func (r *renderer) line(ends int) {
	switch {
	case ends > 0 && r.cell:
		r.space, r.broke = true, true
	case ends > 0:
		r.wants = max(r.wants, ends)
	}
}

// invisible removes the characters that mark where a word may be broken.
var invisible = strings.NewReplacer("\u00ad", "", "\u200b", "", "\u2060", "", "\ufeff", "")

// text writes words.
func (r *renderer) text(s string) {
	if r.exact && !r.cell {
		if strings.TrimSpace(s) != "" || r.wants == 0 {
			r.word(s)
		}
		return
	}
	s = invisible.Replace(s)
	for i, word := range strings.Fields(s) {
		r.space = r.space || i > 0 || strings.TrimLeftFunc(s, unicode.IsSpace) != s
		r.word(word)
	}
	r.space = r.space || strings.TrimRightFunc(s, unicode.IsSpace) != s
}

// word writes the space or line ends that are due, and then the word.
func (r *renderer) word(s string) {
	switch {
	case r.out.Len() == 0:
	case r.wants > 0:
		r.out.WriteString(strings.Repeat("\n", r.wants))
	case r.space:
		if first, _ := utf8.DecodeRuneInString(s); r.broke && unicode.IsDigit(first) && unicode.IsDigit(r.last) {
			r.out.WriteByte(';') // separate two numbers
		}
		r.out.WriteByte(' ')
	}
	r.out.WriteString(s)
	r.last, _ = utf8.DecodeLastRuneInString(s)
	r.wants, r.space, r.broke = 0, false, false
}
