package config

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"reflect"
	"strings"
)

// row describes one key for the reference.
type row struct {
	key, kind, def, change, doc string
	section, common             bool
	tool                        string // the row begins the keys of this kind of tool
}

// meanings returns the comments above the schema's structs and their fields, by package, struct and field.
func meanings() map[string]string {
	out := map[string]string{}
	for _, pattern := range []string{"*.go", "../mgrpo/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			panic(fmt.Sprint(pattern, ": ", err))
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				panic(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if g, ok := n.(*ast.GenDecl); ok && g.Tok == token.TYPE {
					out[file.Name.Name+"."+g.Specs[0].(*ast.TypeSpec).Name.Name] = strings.Join(strings.Fields(g.Doc.Text()), " ")
				}
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if s, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						for _, name := range f.Names {
							out[file.Name.Name+"."+spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
						}
					}
				}
				return false
			})
		}
	}
	return out
}

// meaningOf returns the comment above a field of t or of a struct that t inlines.
func meaningOf(meanings map[string]string, t reflect.Type, f field) string {
	last := len(f.index) - 1
	if last > 0 {
		t = t.FieldByIndex(f.index[:last]).Type
	}
	return meanings[path.Base(t.PkgPath())+"."+t.Name()+"."+t.Field(f.index[last]).Name]
}

// reference returns all keys in the schema's order, with NAME for the names of agents and tools.
func reference() []row {
	var out []row
	meanings := meanings()
	var walk func(t reflect.Type, path, change, inherits, applies string) // the first row has the condition of the section
	walk = func(t reflect.Type, path, change, inherits, applies string) {
		for i, f := range fields(t) {
			if inlined := t.Field(f.index[0]).Type; len(f.index) > 1 && inlined == reflect.TypeFor[ToolBase]() {
				continue // of every kind
			}
			r := row{key: join(path, f.key), doc: meaningOf(meanings, t, f), change: change, common: f.tag.Get("common") == "true"}
			if own := f.tag.Get("change"); own != "" && change != "worker" {
				r.change = own
			}
			if i == 0 && applies != "" && strings.Contains(path, ".") {
				r.doc += " All keys of " + path + applies
			}
			with := ""
			if own := f.tag.Get("applies"); own != "" {
				with = " only with " + describe(own, func(key string) string { return fullKey(t, path, key) }) + "."
				r.doc += strings.Replace(with, " only", " Only", 1)
			}
			from := inherits
			if from != "" {
				from = join(from, f.key)
			}
			if own := f.tag.Get("inherits"); own != "" {
				from = own
			}
			keyed := f.tag.Get("keyed") == "true"
			r.section = keyed || isSection(f.typ)
			r.kind, r.def = typeText(f), defaultText(f, from)
			r.common = r.common && from == "" // else the section that it inherits from has it
			out = append(out, r)
			switch {
			case keyed && f.typ.Elem() == toolType:
				walk(reflect.TypeFor[ToolBase](), r.key+".NAME", r.change, "", "")
				for _, k := range toolKinds {
					out = append(out, row{key: r.key + ".NAME", section: true, tool: k.name, doc: meanings["config."+k.settings.Name()]})
					walk(k.settings, r.key+".NAME", r.change, "", "")
				}
			case keyed:
				walk(f.typ.Elem(), r.key+".NAME", r.change, "", "")
			case f.typ == modelType:
				for _, section := range modelTypes {
					walk(section, r.key, r.change, "", "")
				}
			case r.section:
				walk(f.typ, r.key, r.change, from, with)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", "", "", "")
	return out
}

// typeText describes the values of a key.
func typeText(f field) string {
	if allowed := enumOf(f.tag); allowed != nil {
		var words []string
		for _, w := range allowed {
			if w != "" {
				words = append(words, "`"+w+"`")
			}
		}
		return strings.Join(words, ", ")
	}
	var bounds []string
	for _, b := range [][2]string{{"min", "≥ "}, {"above", "> "}, {"max", "≤ "}, {"below", "< "}} {
		if text, ok := f.tag.Lookup(b[0]); ok {
			bounds = append(bounds, b[1]+text)
		}
	}
	return strings.Join(append([]string{typeName(f.typ)}, bounds...), ", ")
}

func typeName(t reflect.Type) string {
	switch t {
	case durationType:
		return "duration"
	case optionalType:
		return "number or `none`"
	case modelType:
		return "path, shape, module or endpoint"
	case reflect.TypeFor[Path]():
		return "path"
	case variables:
		return "mapping"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "whole number"
	case reflect.Float64:
		return "number"
	case reflect.Array:
		return fmt.Sprintf("%d numbers", t.Len())
	case reflect.Slice:
		return "list of text"
	default:
		return "text"
	}
}

func defaultText(f field, inherits string) string {
	switch {
	case inherits != "":
		return "`" + inherits + "`"
	case f.tag.Get("required") == "true":
		return "required"
	}
	if text, ok := f.tag.Lookup("default"); ok {
		return "`" + text + "`"
	}
	return ""
}

const referenceIntro = `# Configuration

<!-- Generated from the structs of trainer/config: go test ./trainer/config -update -->

One YAML file describes a run. Before a command does anything else, it reports all unknown keys and bad values, with file,
line, column and the nearest valid key. ` + "`--set KEY=VALUE`" + ` overrides any key for one command, for
example ` + "`--set run.steps=3`" + `; its value is YAML.

Relative paths start from the folder of the configuration file, wherever the command is run.
` + "`~` and `$NAME`" + ` are not expanded in paths: such a path is refused.

A key that has no effect is refused, unless its value is the default. *Only with* names the condition under which it has one. If
` + "`cold_start.demonstrations: none`" + `, ` + "`train: false`" + ` or ` + "`schedule: constant`" + ` is given, the keys that it switches off may stay.

A run's ` + "`config.yaml`" + ` has all keys. Values that follow from other keys are comments, so that an override changes them, too.
Only ` + "`run.dir`" + ` is always given: an override of ` + "`run.name`" + ` does not change it.

The file contains no secrets: keys that end in ` + "`_env`" + ` name an environment variable.

The column *change* says whether a value may change. Empty: it must stay the same for the whole run. *resume*: it may
change between a checkpoint and ` + "`--resume`" + `, but all workers of a team must agree. *worker*: each worker may
have its own value.
`

// referencePage returns the text of docs/config.md: every key with its type, default and meaning.
func referencePage() string {
	var b strings.Builder
	b.WriteString(referenceIntro)
	cell := func(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
	all, others := reference(), 0
	b.WriteString("\n## Keys that most runs set\n\n| key | takes | default | meaning |\n|---|---|---|---|\n")
	for _, r := range all {
		switch {
		case r.common:
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.key, cell(r.kind), cell(r.def), cell(r.doc))
		case !r.section:
			others++
		}
	}
	fmt.Fprintf(&b, "\nThe other %d keys are optional, or belong to one kind of task, tool or engine. The sections below have all keys.\n", others)
	inTable := false
	for _, r := range all {
		if r.section && strings.Count(r.key, ".") == 0 || r.tool != "" {
			title := "## " + r.key
			if r.key == "agents" || r.key == "tools" {
				title += ".NAME"
			} else if r.tool != "" {
				title = "### Tools of kind " + r.tool
			}
			fmt.Fprintf(&b, "\n%s\n\n%s\n", title, r.doc)
			inTable = false
			continue
		}
		if r.section {
			continue
		}
		if !inTable {
			b.WriteString("\n| key | takes | default | change | meaning |\n|---|---|---|---|---|\n")
			inTable = true
		}
		_, short, _ := strings.Cut(r.key, ".")
		short = strings.TrimPrefix(short, "NAME.")
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", short, cell(r.kind), cell(r.def), r.change, cell(r.doc))
	}
	return b.String()
}

// resumable lists the keys that may change between a checkpoint and its resume.
func resumable() []string {
	var out []string
	for _, row := range reference() {
		if row.change != "" {
			out = append(out, row.key)
		}
	}
	return out
}
