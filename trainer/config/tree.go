package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// Bounds on a configuration file. Real files have a few KiB. The parser is recursive, so the depth is checked before it
// starts. Its time grows with the square of a mapping's keys, and a key needs a line or a comma, so their number is checked, too.
const (
	maxFileBytes = 1 << 20
	maxItems     = 1 << 15 // line ends and commas
	maxDepth     = 32      // nesting of collections
	maxNodes     = 100000  // values, after aliases are expanded
)

type kind uint8

const (
	nullKind kind = iota
	boolKind
	numberKind
	textKind
	listKind
	mapKind
)

// node is a YAML value without anchors, aliases and styles.
type node struct {
	kind  kind
	text  string // text of a scalar
	pos   position
	items []*node // elements of a list
	keys  []entry // keys of a mapping, in order
}

type entry struct {
	key   string
	pos   position
	value *node
}

// find returns the entry of a key of a mapping, or nil.
func (n *node) find(key string) *entry {
	if i := slices.IndexFunc(n.keys, func(e entry) bool { return e.key == key }); i >= 0 {
		return &n.keys[i]
	}
	return nil
}

// set gives a key of a mapping a value, and returns its entry.
func (n *node) set(key string, pos position, value *node) *entry {
	e := n.find(key)
	if e == nil {
		n.keys = append(n.keys, entry{})
		e = &n.keys[len(n.keys)-1]
	}
	*e = entry{key, pos, value}
	return e
}

// json writes a value as JSON, which is also valid YAML.
func (n *node) json() string {
	switch n.kind {
	case mapKind:
		parts := make([]string, len(n.keys))
		for i, e := range n.keys {
			parts[i] = jsonText(e.key) + ": " + e.value.json()
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case listKind:
		parts := make([]string, len(n.items))
		for i, item := range n.items {
			parts[i] = item.json()
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case nullKind:
		return "null"
	case boolKind:
		return n.text
	case numberKind:
		if json.Valid([]byte(n.text)) {
			return n.text
		}
		if i, err := strconv.ParseInt(n.text, 0, 64); err == nil {
			return strconv.FormatInt(i, 10)
		}
		if f, err := strconv.ParseFloat(n.text, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return strconv.FormatFloat(f, 'g', -1, 64)
		}
	}
	return jsonText(n.text)
}

// describe describes a value for messages such as "must be X; found Y".
func (n *node) describe() string {
	switch n.kind {
	case nullKind:
		return "nothing"
	case boolKind:
		return n.text
	case numberKind:
		return "the number " + clip(n.text)
	case textKind:
		return fmt.Sprintf("the text %q", clip(n.text))
	case listKind:
		return fmt.Sprintf("a list of %d", len(n.items))
	default:
		return "a mapping"
	}
}

// clip shortens text from outside for a message.
func clip(s string) string { return texts.Excerpt(s, 60) }

// parse parses YAML text into a tree. source is its name in messages. parse adds mistakes to errs. It returns nil if
// the text is not YAML.
func parse(source string, text []byte, errs *Errors) (root *node) {
	if len(text) > maxFileBytes {
		errs.add(position{source: source}, "", "%d bytes is too long for a configuration; at most %d are read", len(text), maxFileBytes)
		return nil
	}
	if n := bytes.Count(text, []byte("\n")) + bytes.Count(text, []byte("\r")) + bytes.Count(text, []byte(",")); n > maxItems {
		errs.add(position{source: source}, "", "%d line ends and commas are too many for a configuration; at most %d are read", n, maxItems)
		return nil
	}
	if line := tooDeep(text); line > 0 {
		errs.add(position{source, line, 1}, "", "nested deeper than %d levels", maxDepth)
		return nil
	}
	// The parser panics on some malformed texts.
	defer func() {
		if r := recover(); r != nil {
			errs.add(position{source: source}, "", "not readable as YAML")
			root = nil
		}
	}()
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p, msg := position{source: source}, err.Error()
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			msg = syntax.GetMessage()
			if t := syntax.GetToken(); t != nil && t.Position != nil {
				p.line, p.col = t.Position.Line, t.Position.Column
			}
		}
		errs.add(p, "", "not YAML: %s", msg)
		return nil
	}
	if len(file.Docs) > 1 && file.Docs[1].Body != nil {
		t := file.Docs[1].Body.GetToken()
		errs.add(position{source, t.Position.Line, t.Position.Column}, "", "a second YAML document; a configuration is one document")
		return nil
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return &node{kind: nullKind, pos: position{source, 1, 1}}
	}
	b := builder{source: source, anchors: map[string]*node{}, errs: errs}
	return b.build(file.Docs[0].Body, "", 0)
}

// tooDeep returns the first line with more open collections than 8 × maxDepth, or 0. It counts brackets, block indicators
// of a line and spaces of indentation. It also counts those in quotes, which the factor allows for.
func tooDeep(text []byte) int {
	const bound = 8 * maxDepth
	open, line := 0, 0
	for l := range strings.Lines(string(text)) {
		line++
		body := strings.TrimLeft(l, " ")
		if open == 0 && len(l)-len(body) > bound {
			return line
		}
		if strings.Count(l, "- ")+strings.Count(l, "? ")+strings.Count(l, ": ") > bound*8 {
			return line
		}
		for _, c := range l {
			switch c {
			case '[', '{':
				open++
			case ']', '}':
				open = max(0, open-1)
			}
		}
		if open > bound {
			return line
		}
	}
	return 0
}

// numberForm matches a number of YAML's core schema.
var numberForm = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

// builder converts the parser's nodes into a tree.
type builder struct {
	source  string
	anchors map[string]*node
	nodes   int
	full    bool // a limit was exceeded, and is reported
	errs    *Errors
}

func (b *builder) pos(n ast.Node) position {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return position{b.source, t.Position.Line, t.Position.Column}
	}
	return position{source: b.source}
}

// build converts one value. key is its path, for messages.
func (b *builder) build(n ast.Node, key string, depth int) *node {
	out := &node{pos: b.pos(n)}
	if b.nodes++; b.full || b.nodes > maxNodes || depth > maxDepth {
		b.overflow(out.pos, key)
		return out
	}
	switch n := n.(type) {
	case *ast.NullNode:
		out.kind = nullKind
	case *ast.BoolNode:
		out.kind, out.text = boolKind, strconv.FormatBool(n.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.kind, out.text = numberKind, n.GetToken().Value
	case *ast.StringNode:
		out.kind, out.text = textKind, n.Value
		if n.Token.Type == token.StringType && numberForm.MatchString(n.Value) {
			out.kind = numberKind // the parser reads a number without a point, such as 1e-6, as text
		}
	case *ast.LiteralNode:
		out.kind, out.text = textKind, n.Value.Value
	case *ast.SequenceNode:
		out.kind = listKind
		for i, item := range n.Values {
			out.items = append(out.items, b.build(item, fmt.Sprintf("%s[%d]", key, i), depth+1))
		}
	case *ast.MappingNode:
		out.kind = mapKind
		for _, v := range n.Values {
			b.entry(out, v, key, depth)
		}
	case *ast.AnchorNode:
		out = b.build(n.Value, key, depth)
		b.anchors[n.Name.GetToken().Value] = out
	case *ast.AliasNode:
		return b.alias(n, out, key)
	default:
		b.errs.add(out.pos, key, "%s is not supported in a configuration", n.Type().YAMLName())
	}
	return out
}

// overflow reports that the text exceeds a limit, once.
func (b *builder) overflow(pos position, key string) {
	if !b.full {
		b.full = true
		b.errs.add(pos, key, "nested too deep or too large; a configuration has at most %d levels and %d values", maxDepth, maxNodes)
	}
}

// alias returns a copy of the node of the alias's anchor, so that an override changes only one of them. It returns out if there is no
// such anchor.
func (b *builder) alias(n *ast.AliasNode, out *node, key string) *node {
	name := n.Value.GetToken().Value
	target, ok := b.anchors[name]
	if !ok {
		b.errs.add(out.pos, key, "no anchor &%s before this alias", clip(name))
		return out
	}
	c := b.clone(target)
	if b.nodes > maxNodes {
		b.overflow(out.pos, key)
	}
	return c
}

// clone returns a copy of a tree. The limit of nodes applies to copies, too.
func (b *builder) clone(n *node) *node {
	b.nodes++
	out := *n
	out.items, out.keys = slices.Clone(n.items), slices.Clone(n.keys)
	for i, item := range out.items {
		out.items[i] = b.clone(item)
	}
	for i, e := range out.keys {
		out.keys[i].value = b.clone(e.value)
	}
	return &out
}

// entry converts one key of a mapping and adds it to out.
func (b *builder) entry(out *node, v *ast.MappingValueNode, key string, depth int) {
	p, name := b.pos(v.Key), v.Key.GetToken().Value
	path := join(key, name)
	if _, merge := v.Key.(*ast.MergeKeyNode); merge {
		b.errs.add(p, key, "merge keys (<<) are not supported in a configuration; repeat the keys or use an alias for the whole value")
	} else if first := out.find(name); first != nil {
		b.errs.add(p, path, "given twice; first at line %d", first.pos.line)
	} else {
		out.keys = append(out.keys, entry{name, p, b.build(v.Value, path, depth+1)})
	}
}

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
