package web

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

const (
	maxColumns  = 1000     // columns of a row of a table, as in HTML
	maxRepeated = 64 << 10 // largest number of bytes that the repetitions of one cell may add to a row
)

// spanningCell is a cell that spans further rows.
type spanningCell struct {
	column, columns int
	rows            int // number of further rows; negative: to the end of the row group
	text            string
}

// row writes a row of a table on one line. A cell that spans several columns or rows is repeated in each, so that each
// value is below its heading. A cell that is the only one in its row is written once.
func (r *renderer) row(n *html.Node) {
	var cells []string
	var reaching []spanningCell
	above := r.spanningCells
	take := func() { // adds the cells from above that come next
		for len(above) > 0 && above[0].column <= len(cells) {
			s := above[0]
			above = above[1:]
			cells = append(cells, repeat(s.text, s.columns)...)
			if s.rows--; s.rows != 0 {
				reaching = append(reaching, s)
			}
		}
	}
	own, wide := 0, 0
	for c := range n.ChildNodes() {
		if c.DataAtom != atom.Td && c.DataAtom != atom.Th || len(cells) >= maxColumns {
			continue
		}
		take()
		text := strings.ReplaceAll(r.inner(c, r.links), "|", `\|`) // and no further cell
		switch {
		case isHidden(c):
			text = ""
		case text != "" && (isStruck(n) || isStruck(c)) && inline(c):
			text = "~~" + text + "~~"
		}
		columns := min(max(spanOf(c, "colspan"), 1), maxColumns-len(cells))
		if rows := spanOf(c, "rowspan"); rows != 1 {
			reaching = append(reaching, spanningCell{column: len(cells), columns: columns, rows: rows - 1, text: text})
		}
		own, wide = own+1, columns
		cells = append(cells, repeat(text, columns)...)
	}
	take()
	slices.SortStableFunc(reaching, func(a, b spanningCell) int { return a.column - b.column })
	r.spanningCells = reaching
	if own == 1 && len(cells) == wide {
		cells = cells[:1]
	}
	r.text(strings.Join(cells, " | "))
}

// spanOf returns the number of columns or rows that a cell spans, which is 1 by default.
func spanOf(n *html.Node, key string) int {
	const maxSpan = 65534 // as in HTML
	v, err := strconv.Atoi(strings.TrimSpace(attribute(n, key)))
	if err != nil || v < 0 {
		return 1
	}
	return min(v, maxSpan)
}

// repeat returns a cell's text once for each of its columns. A long text is returned only for the first column.
func repeat(text string, columns int) []string {
	cells := make([]string, max(columns, 1))
	for i := range cells {
		if i == 0 || len(text)*columns <= maxRepeated {
			cells[i] = text
		}
	}
	return cells
}
