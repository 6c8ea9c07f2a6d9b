package config

import (
	"slices"
	"strings"
)

// A run saves its configuration with all keys, including keys whose values were derived from others. If such a file is read again, an
// override must change the derived keys as it does with the user's own file.

// forgetDerived removes the keys of a saved configuration that its other keys imply. It returns any other configuration unchanged. A
// file with at least nine tenths of all keys counts as saved.
func forgetDerived(root *node, dir string) *node {
	c, d := decode(root, dir)
	if len(d.errs) > 0 {
		return root // the caller reports them, unless an override mends them
	}
	given, values := 0, c.values(asWritten, all)
	for key := range values {
		if _, ok := d.at[key]; ok {
			given++
		}
	}
	if given*10 < len(values)*9 {
		return root
	}
	p := pruner{root: root, dir: dir, values: values, drop: map[*node]bool{}}
	p.prune(leaves("", root))
	return root.without(p.drop)
}

// pruner finds values that a configuration implies.
type pruner struct {
	root   *node
	dir    string
	values map[string]string // values of the configuration, which must stay the same
	drop   map[*node]bool
}

// keyedValue is a value that is not a mapping, with its key.
type keyedValue struct {
	key   string
	value *node
}

// prune drops the values that the others imply, so the configuration stays the same. First it drops all values, and restores each value
// that changes, until nothing changes. Then it drops each restored value that the others imply. It begins with the last, because most
// derived values come after the values that they are derived from.
func (p *pruner) prune(values []keyedValue) {
	for _, v := range values {
		p.drop[v.value] = true
	}
	var restored []keyedValue
	for changed := p.changed(); len(changed) > 0; changed = p.changed() {
		before := len(restored)
		for _, v := range values {
			if p.drop[v.value] && slices.ContainsFunc(changed, func(key string) bool { return isPart(v.key, key) }) {
				delete(p.drop, v.value)
				restored = append(restored, v)
			}
		}
		if len(restored) == before { // a restored key is refused, because it has no effect without a dropped one
			clear(p.drop)
			restored = values
		}
	}
	for again := true; again; { // grpo.old can be dropped once grpo.tis_cap is
		again = false
		for _, v := range slices.Backward(restored) {
			if p.drop[v.value] {
				continue
			}
			p.drop[v.value] = true
			if len(p.changed()) > 0 {
				delete(p.drop, v.value)
			} else {
				again = true
			}
		}
	}
}

// changed returns the keys that have another value, or a mistake, because of the dropped values.
func (p *pruner) changed() (keys []string) {
	c, d := decode(p.root.without(p.drop), p.dir)
	for _, e := range d.errs {
		key, _, _ := strings.Cut(e.Key, "[")
		for !p.has(key) { // such as the width of a model without its key kind
			key = key[:max(0, strings.LastIndexByte(key, '.'))]
		}
		keys = append(keys, key)
	}
	values := c.values(asWritten, all)
	for key, value := range p.values {
		if now, ok := values[key]; !ok || now != value {
			keys = append(keys, key)
		}
	}
	return keys
}

// has reports whether the configuration has a value at a key or below it.
func (p *pruner) has(key string) bool {
	for k := range p.values {
		if isPart(k, key) {
			return true
		}
	}
	return false
}

// isPart reports whether a key is another key or below it. All keys are below "".
func isPart(key, of string) bool { return of == "" || key == of || strings.HasPrefix(key, of+".") }

// leaves returns the values of a tree's mappings that are not mappings themselves, for a tree at a key.
func leaves(key string, n *node) (out []keyedValue) {
	for _, e := range n.keys {
		if path := join(key, e.key); e.value.kind == mapKind {
			out = append(out, leaves(path, e.value)...)
		} else {
			out = append(out, keyedValue{path, e.value})
		}
	}
	return out
}

// without returns a copy of a tree without some values of mappings.
func (n *node) without(drop map[*node]bool) *node {
	if n.kind != mapKind {
		return n
	}
	out := *n
	out.keys = nil
	for _, e := range n.keys {
		if !drop[e.value] {
			out.keys = append(out.keys, entry{e.key, e.pos, e.value.without(drop)})
		}
	}
	return &out
}

func asWritten(p Path, _ bool) Path { return p }

func all(string) bool { return true }
