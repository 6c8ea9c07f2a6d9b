package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// condition is the tag "applies" of a key or of a section around it.
type condition struct {
	text    string
	key     string        // path of the section that has the tag
	section reflect.Value // the section itself
}

// term is one comparison of a condition.
type term struct {
	key   string
	not   bool
	words []string // nil: the key must be given
}

// terms parses a condition. One of the outer lists must hold, which means all of its terms.
func terms(text string) (or [][]term) {
	for one := range strings.SplitSeq(text, " or ") {
		var and []term
		for part := range strings.SplitSeq(one, " and ") {
			key, values, compares := strings.Cut(part, "=")
			t := term{key: strings.TrimSuffix(key, "!"), not: strings.HasSuffix(key, "!")}
			if compares {
				t.words = strings.Split(values, "|")
			}
			and = append(and, t)
		}
		or = append(or, and)
	}
	return or
}

// describe writes a condition for people. full returns the path of a term's key.
func describe(text string, full func(key string) string) string {
	var or []string
	for _, list := range terms(text) {
		var and []string
		for _, t := range list {
			s := full(t.key)
			if t.not {
				s += " other than"
			}
			if t.words != nil {
				s += " " + strings.Join(t.words, " or ")
			}
			and = append(and, s)
		}
		or = append(or, strings.Join(and, " and "))
	}
	return strings.Join(or, ", or ")
}

// hasKey reports whether a section has a key, such as expert.kind.
func hasKey(section reflect.Type, key string) bool {
	first, rest, more := strings.Cut(key, ".")
	fs := fields(section)
	i := slices.Index(keyNames(fs), first)
	return i >= 0 && (!more || isSection(fs[i].typ) && hasKey(fs[i].typ, rest))
}

// fullKey returns the path of a condition's key, which is in the section at path or starts from the top.
func fullKey(section reflect.Type, path, key string) string {
	if hasKey(section, key) {
		return join(path, key)
	}
	return key
}

// switchOf returns the value of a condition's key, and the key's tags.
func (d *decoder) switchOf(c condition, key string) (reflect.Value, reflect.StructTag) {
	if hasKey(c.section.Type(), key) {
		return valueOf(c.section, key)
	}
	return valueOf(d.root, key)
}

func (d *decoder) holds(c condition) bool {
	return slices.ContainsFunc(terms(c.text), func(and []term) bool {
		return !slices.ContainsFunc(and, func(t term) bool {
			v, _ := d.switchOf(c, t.key)
			if t.words == nil {
				return isEmpty(v)
			}
			return slices.Contains(t.words, fmt.Sprint(v)) == t.not
		})
	})
}

// switchedOff reports whether a key of the condition has the value of its tag "off", set in the same file as the value at pos or by a
// later override.
func (d *decoder) switchedOff(c condition, pos position) bool {
	return slices.ContainsFunc(slices.Concat(terms(c.text)...), func(t term) bool {
		v, tag := d.switchOf(c, t.key)
		at, given := d.at[fullKey(c.section.Type(), c.key, t.key)]
		off, ok := tag.Lookup("off")
		return ok && given && off == fmt.Sprint(v) && (at.line == 0 || pos.line > 0)
	})
}

// isEmpty reports whether a value is zero or has no elements.
func isEmpty(v reflect.Value) bool { return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 }

// isUsual reports whether a value is a key's default. If the default is the path ".", every path counts as the default, because a
// saved configuration names the folder from another folder.
func isUsual(v, usual reflect.Value) bool {
	return reflect.DeepEqual(v.Interface(), usual.Interface()) || isEmpty(v) && isEmpty(usual) || v.Type() == pathType && usual.String() == "."
}

// refuseIdle refuses given values of a section that have no effect because a condition is false. A value may be equal to its default,
// because a saved configuration has all keys.
func (d *decoder) refuseIdle(key string, section, defaults reflect.Value, around []condition) {
	for _, f := range fields(section.Type()) {
		path, v, usual := join(key, f.key), section.FieldByIndex(f.index), defaults.FieldByIndex(f.index)
		conditions := around
		if text, ok := f.tag.Lookup("applies"); ok {
			conditions = append(slices.Clip(around), condition{text, key, section})
		}
		if isSection(f.typ) {
			d.refuseIdle(path, v, usual, conditions)
			continue
		}
		pos, given := d.at[path]
		if given && !isUsual(v, usual) {
			i := slices.IndexFunc(conditions, func(c condition) bool { return !d.holds(c) && !d.switchedOff(c, pos) })
			if i >= 0 {
				c := conditions[i]
				full := func(key string) string { return fullKey(c.section.Type(), c.key, key) }
				d.failAt(path, "has an effect only with %s; set that, or remove this key", describe(c.text, full))
				continue
			}
		}
		if f.tag.Get("keyed") == "true" {
			d.refuseIdleEntries(path, v)
		}
	}
}

// refuseIdleEntries does the same as refuseIdle for each entry of a mapping of names.
func (d *decoder) refuseIdleEntries(key string, entries reflect.Value) {
	for i := range entries.Len() {
		entry := entries.Index(i)
		var usual reflect.Value
		if t, ok := entry.Interface().(Tool); ok {
			entry, usual = reflect.ValueOf(t).Elem(), reflect.ValueOf(newTool(t.Base().Kind, t.Base().Name)).Elem()
		} else {
			usual = reflect.New(entry.Type()).Elem()
			setDefaults(usual)
			d.inherit(usual)
		}
		d.refuseIdle(join(key, entry.FieldByName("Name").String()), entry, usual, nil)
	}
}

// refuseAllIdle does the same as refuseIdle for the whole configuration.
func (d *decoder) refuseAllIdle() {
	usual := reflect.New(d.root.Type()).Elem()
	setDefaults(usual)
	d.refuseIdle("", d.root, usual, nil)
}
