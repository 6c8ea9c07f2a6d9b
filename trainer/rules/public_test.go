package rules

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// public reads the list of docs/library.md: the packages that programs outside this repository may import.
func public(t *testing.T) []string {
	t.Helper()
	var folders []string
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:trainer|bindings/torch)[a-z/]*)` \\|").FindAllStringSubmatch(read(t, "docs/library.md"), -1) {
		folders = append(folders, m[1])
	}
	if len(folders) < 5 {
		t.Fatalf("docs/library.md lists %d packages", len(folders))
	}
	return folders
}

// TestExampleIsPublic checks that the examples for users of the library import public packages only.
func TestExampleIsPublic(t *testing.T) {
	list, used := public(t), map[string]bool{}
	eachImport(t, func(file, imported string) {
		folder, ours := strings.CutPrefix(imported, module)
		if !within(file, "examples/task-in-go", "examples/head-in-go") || !ours {
			return
		}
		used[folder] = true
		if !slices.Contains(list, folder) {
			t.Errorf("%s imports %s, which docs/library.md does not list", file, folder)
		}
	})
	if len(used) < 5 {
		t.Errorf("the example shows %d packages: %v", len(used), used)
	}
}

// TestPublicNames checks that every exported name of a public package has a description, and that the types in its declaration
// are of public packages.
func TestPublicNames(t *testing.T) {
	list := public(t)
	for _, folder := range list {
		if folder == "bindings/torch" { // a program names Scope and Tensor only; the operations on them belong to the forward pass
			continue
		}
		for name, file := range sources(t, folder) {
			ours := map[string]string{} // folders of this module by the name under which the file imports them
			for _, i := range file.Imports {
				imported, _ := strconv.Unquote(i.Path.Value)
				if at, ok := strings.CutPrefix(imported, module); ok {
					as := path.Base(at)
					if i.Name != nil {
						as = i.Name.Name
					}
					ours[as] = at
				}
			}
			for _, d := range file.Decls {
				for _, e := range exported(d) {
					if !e.described {
						t.Errorf("%s: %s has no description", name, e.name)
					}
					for mentioned := range e.mentions {
						if at, ok := ours[mentioned]; ok && !slices.Contains(list, at) {
							t.Errorf("%s: %s needs %s, which docs/library.md does not list", name, e.name, at)
						}
					}
				}
			}
		}
	}
}

// export is an exported name of a package.
type export struct {
	name      string
	described bool
	mentions  map[string]bool // packages, as the file calls them
}

// exported returns the exported names of a declaration.
func exported(d ast.Decl) (out []export) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		receiver := ""
		if d.Recv != nil {
			receiver = strings.Trim(typeName(d.Recv.List[0].Type), "*")
		}
		if d.Name.IsExported() && (receiver == "" || ast.IsExported(receiver)) {
			out = append(out, export{strings.TrimPrefix(receiver+"."+d.Name.Name, "."), d.Doc != nil || standardMethod(d), mentions(d.Type)})
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					out = append(out, export{s.Name.Name, d.Doc != nil || s.Doc != nil || s.Comment != nil, mentions(s.Type)})
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() {
						out = append(out, export{n.Name, d.Doc != nil || s.Doc != nil || s.Comment != nil, mentions(s.Type)})
					}
				}
			}
		}
	}
	return out
}

// standardMethod reports whether a method has the same meaning for every type.
func standardMethod(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "String", "Unwrap"}, d.Name.Name)
}

// mentions returns the packages that a type names. It leaves out unexported fields of a struct.
func mentions(e ast.Expr) map[string]bool {
	out := map[string]bool{}
	if e == nil {
		return out
	}
	_, isStruct := e.(*ast.StructType)
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			return !isStruct || len(n.Names) == 0 || slices.ContainsFunc(n.Names, (*ast.Ident).IsExported)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				out[x.Name] = true
			}
		}
		return true
	})
	return out
}
