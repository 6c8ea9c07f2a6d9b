package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// decoder fills a Config from a tree and collects every mistake.
type decoder struct {
	root reflect.Value // the Config being filled, which is the source of inherited defaults
	at   map[string]position
	errs Errors
}

// failAt reports a mistake at a key or, if the key was not given, at the nearest given section around it.
func (d *decoder) failAt(key, format string, args ...any) {
	d.errs.add(nearestPlace(d.at, key), key, format, args...)
}

// refuseIf reports a mistake as failAt does, if it was made.
func (d *decoder) refuseIf(made bool, key, format string, args ...any) {
	if made {
		d.failAt(key, format, args...)
	}
}

// nearestPlace returns the position of a key or, if the key was not given, of the nearest given section around it.
func nearestPlace(at map[string]position, key string) position {
	for {
		if p, ok := at[key]; ok || key == "" {
			return p
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
}

// section fills a struct from a mapping. It processes keys in the struct's order, so that a section is filled before
// the sections that inherit from it.
func (d *decoder) section(key string, n *node, v reflect.Value) {
	fs := fields(v.Type())
	if n.kind == nullKind { // all keys of the section are commented out
		n = &node{kind: mapKind, pos: n.pos}
	}
	if n.kind != mapKind {
		d.errs.add(n.pos, key, "must be a section with keys such as %s; found %s", fs[0].key, n.describe())
		return
	}
	for _, e := range n.keys {
		if !slices.Contains(keyNames(fs), e.key) {
			d.errs.add(e.pos, join(key, e.key), "unknown key; %s", suggestKey(e.key, key, keyNames(fs)))
		}
	}
	for _, f := range fs {
		path := join(key, f.key)
		if e := n.find(f.key); e != nil {
			d.at[path] = e.pos
			d.value(path, e.value, v.FieldByIndex(f.index), f.tag)
			if f.tag.Get("derived") == "true" && f.tag.Get("default") == "0" && v.FieldByIndex(f.index).IsZero() {
				delete(d.at, path) // 0 requests the derived value, as if the key were absent
			}
		} else if f.tag.Get("required") == "true" {
			d.errs.add(n.pos, path, "missing, but required")
		}
	}
}

// value fills one key.
func (d *decoder) value(key string, n *node, v reflect.Value, tag reflect.StructTag) {
	switch {
	case tag.Get("keyed") == "true":
		d.keyed(key, n, v)
		return
	case isSection(v.Type()):
		d.section(key, n, v)
		return
	case v.Type() == modelType:
		d.model(key, n, v)
		return
	}
	if tag.Get("single") == "true" && n.kind == textKind {
		n = &node{kind: listKind, pos: n.pos, items: []*node{n}}
	}
	before := len(d.errs)
	d.scalar(key, n, v)
	if len(d.errs) == before {
		d.check(key, n, v, tag)
	}
}

// keyed fills a slice from a mapping of names.
func (d *decoder) keyed(key string, n *node, v reflect.Value) {
	if n.kind == nullKind {
		return
	}
	if n.kind != mapKind {
		d.errs.add(n.pos, key, "must be a mapping from names to their settings; found %s", n.describe())
		return
	}
	for _, e := range n.keys {
		path := join(key, e.key)
		if !validName(e.key) {
			d.errs.add(e.pos, path, "not a name; names start with a letter and have at most 64 letters, digits, dashes and underscores")
			continue
		}
		d.at[path] = e.pos
		n := *e.value
		n.pos = e.pos
		if v.Type().Elem() == toolType {
			d.tool(path, e.key, &n, v)
			continue
		}
		item := reflect.New(v.Type().Elem()).Elem()
		setDefaults(item)
		d.inherit(item)
		item.FieldByName("Name").SetString(e.key)
		d.section(path, &n, item)
		v.Set(reflect.Append(v, item))
	}
}

// tool appends a tool to a slice. It reads the kind first, because the kind decides which keys the tool has.
func (d *decoder) tool(path, name string, n *node, tools reflect.Value) {
	kind := *n
	kind.keys = slices.DeleteFunc(slices.Clone(n.keys), func(e entry) bool { return e.key != "kind" })
	var base ToolBase
	before := len(d.errs)
	if d.section(path, &kind, reflect.ValueOf(&base).Elem()); len(d.errs) > before {
		return
	}
	t := reflect.ValueOf(newTool(base.Kind, name))
	d.section(path, n, t.Elem())
	tools.Set(reflect.Append(tools, t))
}

// inherit copies defaults from other sections of the configuration into item.
func (d *decoder) inherit(item reflect.Value) {
	for _, f := range fields(item.Type()) {
		from := f.tag.Get("inherits")
		if from == "" {
			continue
		}
		for _, inner := range fields(f.typ) {
			source, _ := valueOf(d.root, join(from, inner.key))
			item.FieldByIndex(f.index).FieldByIndex(inner.index).Set(source)
		}
	}
}

// model fills an agent's model: a path, a shape, a module if the mapping has the key torchscript, or an endpoint if it has the key kind.
func (d *decoder) model(key string, n *node, v reflect.Value) {
	switch {
	case n.kind == textKind && n.text != "":
		d.checkPath(key, n)
		v.Set(reflect.ValueOf(Model{Path: Path(n.text)}))
	case n.kind == mapKind:
		field := "Shape"
		if n.find("kind") != nil {
			field = "Endpoint"
		} else if n.find("torchscript") != nil {
			field = "Module"
		}
		section := v.FieldByName(field)
		section.Set(reflect.New(section.Type().Elem()))
		setDefaults(section.Elem())
		d.section(key, n, section.Elem())
	default:
		d.errs.add(n.pos, key, "must be a folder, a GGUF file, ORG/NAME or ORG/NAME@REVISION of the Hugging Face Hub, a shape such as {width: 64, layers: "+
			"2, heads: 4, ffn: 192}, a module, {torchscript: FILE}, or a hosted model, {kind: openai, url: ..., name: ...}; found %s", n.describe())
	}
}

// scalar fills a value that is not a section.
func (d *decoder) scalar(key string, n *node, v reflect.Value) {
	want := func(what string) { d.errs.add(n.pos, key, "must be %s; found %s", what, n.describe()) }
	switch v.Type() {
	case durationType, variables, optionalType:
		named(n, v, want)
		return
	}
	switch v.Kind() {
	case reflect.String:
		switch n.kind {
		case textKind:
			v.SetString(n.text)
		case boolKind, numberKind:
			want("text, in quotes if it looks like something else")
		default:
			want("text")
		}
	case reflect.Bool:
		if n.kind != boolKind {
			want("true or false")
			return
		}
		v.SetBool(n.text == "true")
	case reflect.Int, reflect.Int64:
		x, err := strconv.ParseInt(n.text, 10, 64)
		if n.kind != numberKind || err != nil {
			want("a whole number")
			return
		}
		v.SetInt(x)
	case reflect.Uint64:
		x, err := strconv.ParseUint(n.text, 10, 64)
		if n.kind != numberKind || err != nil {
			want("a whole number from 0 to 2^64 - 1")
			return
		}
		v.SetUint(x)
	case reflect.Float64:
		x, err := strconv.ParseFloat(n.text, 64)
		if n.kind != numberKind || err != nil { // strconv refuses .inf and .nan, and 1e999
			want("a finite number")
			return
		}
		v.SetFloat(x)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.scalar(key, n, v.Elem())
	case reflect.Array, reflect.Slice:
		d.list(key, n, v)
	default:
		panic("config: no decoding for " + v.Type().String())
	}
}

// named decodes a value of a type with a notation of its own. It calls want with the notation if the value has another one.
func named(n *node, v reflect.Value, want func(what string)) {
	switch v.Type() {
	case durationType:
		t, err := time.ParseDuration(n.text)
		if n.kind != textKind || err != nil {
			want("a duration such as 30s or 10m")
			return
		}
		v.SetInt(int64(t))
	case variables:
		if n.kind != mapKind {
			want("a mapping such as {enable_thinking: false}")
			return
		}
		if len(n.keys) > 0 {
			v.SetString(n.json())
		}
	case optionalType:
		if n.kind == textKind && n.text == "none" {
			v.SetZero()
			return
		}
		x, err := strconv.ParseFloat(n.text, 64)
		if n.kind != numberKind || err != nil { // strconv refuses .inf and .nan, and 1e999
			want("a number or none")
			return
		}
		v.Set(reflect.ValueOf(&x))
	}
}

// list fills a slice, or an array with a fixed length.
func (d *decoder) list(key string, n *node, v reflect.Value) {
	fixed := v.Kind() == reflect.Array
	if n.kind != listKind || fixed && len(n.items) != v.Len() {
		if fixed {
			d.errs.add(n.pos, key, "must be a list of %d numbers; found %s", v.Len(), n.describe())
		} else {
			d.errs.add(n.pos, key, "must be a list such as [a, b]; found %s", n.describe())
		}
		return
	}
	if !fixed {
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	}
	for i, item := range n.items {
		path := fmt.Sprintf("%s[%d]", key, i)
		d.at[path] = item.pos
		d.scalar(path, item, v.Index(i))
	}
}

// setDefaults fills a section with the defaults of its tags. It panics if a tag does not fit its field. The tests of
// this package find such tags.
func setDefaults(v reflect.Value) {
	for _, f := range fields(v.Type()) {
		target := v.FieldByIndex(f.index)
		text, ok := f.tag.Lookup("default")
		switch {
		case isSection(f.typ):
			setDefaults(target)
		case ok:
			target.Set(defaultOf(f, text))
		}
	}
}

// parsedDefaults holds the default, a reflect.Value, for each type and tag of a field.
var parsedDefaults sync.Map

// defaultOf returns the value of a field's tag "default". Values are shared: they are replaced, not changed.
func defaultOf(f field, text string) reflect.Value {
	type key struct {
		typ reflect.Type
		tag reflect.StructTag
	}
	k := key{f.typ, f.tag}
	if v, ok := parsedDefaults.Load(k); ok {
		return v.(reflect.Value)
	}
	v := reflect.New(f.typ).Elem()
	d := decoder{at: map[string]position{}}
	d.value(f.key, parse("default", []byte(text), &d.errs), v, f.tag)
	if len(d.errs) > 0 {
		panic("config: bad default in a tag: " + d.errs.Error())
	}
	parsedDefaults.Store(k, v)
	return v
}
