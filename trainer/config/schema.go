package config

import (
	"reflect"
	"slices"
	"strings"
	"sync"
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
	if known, ok := fieldsOf.Load(t); ok {
		return known.([]field)
	}
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
	fieldsOf.Store(t, out)
	return out
}

// fieldsOf holds the result of fields for each type.
var fieldsOf sync.Map

func keyNames(fs []field) []string {
	names := make([]string, len(fs))
	for i, f := range fs {
		names[i] = f.key
	}
	return names
}

// valueOf returns the value of a key in a section, such as expert.kind, and the key's tags. The key must exist.
func valueOf(section reflect.Value, key string) (v reflect.Value, tag reflect.StructTag) {
	v = section
	for part := range strings.SplitSeq(key, ".") {
		fs := fields(v.Type())
		f := fs[slices.Index(keyNames(fs), part)]
		v, tag = v.FieldByIndex(f.index), f.tag
	}
	return v, tag
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	optionalType = reflect.TypeFor[*float64]() // a number, or the word none, which gives nil
	modelType    = reflect.TypeFor[Model]()
	toolType     = reflect.TypeFor[Tool]()
	pathType     = reflect.TypeFor[Path]()
	variables    = reflect.TypeFor[Variables]() // a mapping with arbitrary names
	// Sections that a model can be.
	modelTypes = []reflect.Type{reflect.TypeFor[Shape](), reflect.TypeFor[Module](), reflect.TypeFor[Endpoint]()}
)

// isSection reports whether values of the type are mappings with fixed keys.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t != modelType
}

// enumOf returns the values that a key may have, or nil if the key has no list of values.
func enumOf(tag reflect.StructTag) []string {
	if enum, ok := tag.Lookup("enum"); ok {
		return strings.Split(enum, "|")
	}
	if tag.Get("family") == "true" {
		return arch.Families()
	}
	if tag.Get("verifier") == "true" {
		return verifierKinds
	}
	if tag.Get("layout") == "true" {
		return layouts
	}
	if tag.Get("tool") == "true" {
		return kindNames("kind") // which every kind has
	}
	return nil
}

// entryTypes returns the sections that an entry of a keyed slice can be: one, or one for each kind of tool.
func entryTypes(t reflect.Type) []reflect.Type {
	if t != toolType {
		return []reflect.Type{t}
	}
	var out []reflect.Type
	for _, k := range toolKinds {
		out = append(out, k.settings)
	}
	return out
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
				for _, entry := range entryTypes(f.typ.Elem()) {
					walk(p+".NAME", entry)
				}
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
