package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// field is one key of a section, with its struct tags.
type field struct {
	key   string
	index []int // for reflect's FieldByIndex
	typ   reflect.Type
	tag   reflect.StructTag
}

// fields lists the keys of a section in the struct's order. Keys of inlined structs appear at the place of the inlined
// struct.
func fields(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("yaml")
		switch {
		case name == ",inline":
			for _, inner := range fields(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				out = append(out, inner)
			}
		case name != "" && name != "-":
			out = append(out, field{name, []int{i}, f.Type, f.Tag})
		}
	}
	return out
}

func keyNames(fs []field) []string {
	names := make([]string, len(fs))
	for i, f := range fs {
		names[i] = f.key
	}
	return names
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	optionalType = reflect.TypeFor[*float64]() // a number, or the word none, which gives nil
	modelType    = reflect.TypeFor[Model]()
	pathType     = reflect.TypeFor[Path]()
	variables    = reflect.TypeFor[Variables]() // a mapping with arbitrary names
	// Sections that a model can be.
	modelTypes = []reflect.Type{reflect.TypeFor[Shape](), reflect.TypeFor[Module](), reflect.TypeFor[Endpoint]()}
)

// isSection reports whether values of the type are mappings with fixed keys.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != modelType
}

// decoder fills a Config from a tree and collects every mistake.
type decoder struct {
	root reflect.Value // the Config being filled, which is the source of inherited defaults
	at   map[string]position
	errs Errors
}

func (d *decoder) fail(p position, key, format string, args ...any) {
	d.errs = append(d.errs, &Error{Where: p.String(), Key: key, Msg: fmt.Sprintf(format, args...), pos: p})
}

// failAt reports a mistake at a key or, if the key was not given, at the nearest given section around it.
func (d *decoder) failAt(key, format string, args ...any) {
	d.fail(nearestPlace(d.at, key), key, format, args...)
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
		d.fail(n.pos, key, "must be a section with keys such as %s; found %s", fs[0].key, n.describe())
		return
	}
	for _, e := range n.keys {
		if !slices.Contains(keyNames(fs), e.key) {
			d.fail(e.pos, join(key, e.key), "unknown key; %s", suggestKey(e.key, key, keyNames(fs)))
		}
	}
	for _, f := range fs {
		path := join(key, f.key)
		if e := slices.IndexFunc(n.keys, func(e entry) bool { return e.key == f.key }); e >= 0 {
			d.at[path] = n.keys[e].pos
			d.value(path, n.keys[e].value, v.FieldByIndex(f.index), f.tag)
		} else if f.tag.Get("required") == "true" {
			d.fail(n.pos, path, "missing, but required")
		}
	}
}

// suggestKey returns the end of the message about an unknown key: the nearest key of the section, or the same key
// elsewhere, or all keys of the section.
func suggestKey(word, section string, valid []string) string {
	if c := nearest(word, valid); c != "" {
		return "did you mean " + c + "?"
	}
	for _, path := range schemaKeys() {
		if strings.HasSuffix(path, "."+word) {
			return "did you mean " + path + "?"
		}
	}
	if section == "" {
		return "sections are " + strings.Join(valid, ", ")
	}
	return "valid are " + strings.Join(valid, ", ")
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
		d.fail(n.pos, key, "must be a mapping from names to their settings; found %s", n.describe())
		return
	}
	for _, e := range n.keys {
		path := join(key, e.key)
		if !validName(e.key) {
			d.fail(e.pos, path, "not a name; names start with a letter and have at most 64 letters, digits, dashes and underscores")
			continue
		}
		d.at[path] = e.pos
		item := reflect.New(v.Type().Elem()).Elem()
		setDefaults(item)
		d.inherit(item)
		item.FieldByName("Name").SetString(e.key)
		d.section(path, &node{kind: e.value.kind, text: e.value.text, pos: e.pos, keys: e.value.keys, items: e.value.items}, item)
		v.Set(reflect.Append(v, item))
	}
}

// inherit copies defaults from other sections of the configuration into item.
func (d *decoder) inherit(item reflect.Value) {
	for _, f := range fields(item.Type()) {
		from := f.tag.Get("inherits")
		if from == "" {
			continue
		}
		source := d.root
		for part := range strings.SplitSeq(from, ".") {
			fs := fields(source.Type())
			source = source.FieldByIndex(fs[slices.Index(keyNames(fs), part)].index)
		}
		all := fields(source.Type())
		for _, inner := range fields(f.typ) {
			i := slices.Index(keyNames(all), inner.key)
			item.FieldByIndex(f.index).FieldByIndex(inner.index).Set(source.FieldByIndex(all[i].index))
		}
	}
}

// model fills an agent's model: a path, a shape, a module if the mapping has the key torchscript, or an endpoint if it has the key kind.
func (d *decoder) model(key string, n *node, v reflect.Value) {
	switch {
	case n.kind == textKind && n.text != "":
		v.Set(reflect.ValueOf(Model{Path: Path(n.text)}))
	case n.kind == mapKind && n.get("kind") != nil:
		endpoint := new(Endpoint)
		setDefaults(reflect.ValueOf(endpoint).Elem())
		d.section(key, n, reflect.ValueOf(endpoint).Elem())
		v.Set(reflect.ValueOf(Model{Endpoint: endpoint}))
	case n.kind == mapKind && n.get("torchscript") != nil:
		module := new(Module)
		d.section(key, n, reflect.ValueOf(module).Elem())
		v.Set(reflect.ValueOf(Model{Module: module}))
	case n.kind == mapKind:
		shape := new(Shape)
		setDefaults(reflect.ValueOf(shape).Elem())
		d.section(key, n, reflect.ValueOf(shape).Elem())
		v.Set(reflect.ValueOf(Model{Shape: shape}))
	default:
		d.fail(n.pos, key, "must be a folder, a GGUF file, ORG/NAME or ORG/NAME@REVISION of the Hugging Face Hub, a shape such as {width: 64, layers: 2, heads: 4, ffn: 192}, a module, {torchscript: FILE}, or a hosted model, {kind: openai, url: ..., name: ...}; found %s", n.describe())
	}
}

// scalar fills a value that is not a section.
func (d *decoder) scalar(key string, n *node, v reflect.Value) {
	want := func(what string) { d.fail(n.pos, key, "must be %s; found %s", what, n.describe()) }
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
			d.fail(n.pos, key, "must be a list of %d numbers; found %s", v.Len(), n.describe())
		} else {
			d.fail(n.pos, key, "must be a list such as [a, b]; found %s", n.describe())
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

// enumOf returns the values that a key may have, or nil if the key has no list of values.
func enumOf(tag reflect.StructTag) []string {
	if enum, ok := tag.Lookup("enum"); ok {
		return strings.Split(enum, "|")
	}
	if tag.Get("family") == "true" {
		return arch.Families()
	}
	return nil
}

// check checks a value against the bounds of its tag.
func (d *decoder) check(key string, n *node, v reflect.Value, tag reflect.StructTag) {
	if v.Kind() == reflect.Array {
		for i := range v.Len() {
			d.check(fmt.Sprintf("%s[%d]", key, i), n.items[i], v.Index(i), tag)
		}
		return
	}
	if allowed := enumOf(tag); allowed != nil {
		if !slices.Contains(allowed, v.String()) {
			words := slices.DeleteFunc(allowed, func(s string) bool { return s == "" })
			d.fail(n.pos, key, "%q is not possible; %s", clip(v.String()), suggestWord(v.String(), words))
		}
		return
	}
	x, ok := numeric(v)
	if !ok {
		return
	}
	for _, b := range []struct {
		tag, words string
		holds      func(bound float64) bool
	}{
		{"min", "at least", func(b float64) bool { return x >= b }},
		{"above", "above", func(b float64) bool { return x > b }},
		{"max", "at most", func(b float64) bool { return x <= b }},
		{"below", "below", func(b float64) bool { return x < b }},
	} {
		text, ok := tag.Lookup(b.tag)
		if ok && !b.holds(bound(text)) {
			d.fail(n.pos, key, "must be %s %s; found %s", b.words, text, n.text)
		}
	}
}

// suggestWord returns the end of the message about a word that is not allowed.
func suggestWord(word string, allowed []string) string {
	if len(allowed) == 1 {
		return fmt.Sprintf("the only word is %q", allowed[0])
	}
	return didYouMean(word, allowed)
}

// numeric returns the value as a number; ok is false if the value is nil or not a number.
func numeric(v reflect.Value) (float64, bool) {
	switch {
	case v.Type() == optionalType:
		if v.IsNil() {
			return 0, false
		}
		return v.Elem().Float(), true
	case v.CanInt():
		return float64(v.Int()), true
	case v.CanUint():
		return float64(v.Uint()), true
	case v.CanFloat():
		return v.Float(), true
	}
	return 0, false
}

// bound reads a bound from a tag: a number or a duration.
func bound(text string) float64 {
	if x, err := strconv.ParseFloat(text, 64); err == nil {
		return x
	}
	t, err := time.ParseDuration(text)
	if err != nil {
		panic("config: bad bound in a tag: " + text)
	}
	return float64(t)
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
			d := decoder{at: map[string]position{}}
			d.value(f.key, parse("default", []byte(text), &d.errs), target, f.tag)
			if len(d.errs) > 0 {
				panic("config: bad default in a tag: " + d.errs.Error())
			}
		}
	}
}

// schemaKeys lists the paths of all keys, with NAME in place of the names of agents and tools.
func schemaKeys() []string {
	var out []string
	var walk func(path string, t reflect.Type)
	walk = func(path string, t reflect.Type) {
		for _, f := range fields(t) {
			p := join(path, f.key)
			out = append(out, p)
			switch {
			case f.tag.Get("keyed") == "true":
				walk(p+".NAME", f.typ.Elem())
			case f.typ == modelType:
				for _, section := range modelTypes {
					walk(p, section)
				}
			case isSection(f.typ):
				walk(p, f.typ)
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
	return out
}

// validName reports whether s is a valid name of an agent, a tool or a run.
func validName(s string) bool {
	if s == "" || len(s) > 64 || !isLetter(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isLetter(c) && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
