package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
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
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:trainer|bindings/torch/gotchx)[a-z/]*)` \\|").FindAllStringSubmatch(read(t, "docs/library.md"), -1) {
		folders = append(folders, m[1])
	}
	if len(folders) < 5 {
		t.Fatalf("docs/library.md lists %d packages", len(folders))
	}
	return folders
}

// TestExampleIsPublic checks that the examples for users of the library import public packages only. The test of a loss term is
// different: it opens a device as the trainer does.
func TestExampleIsPublic(t *testing.T) {
	list, used := public(t), map[string]bool{}
	eachImport(t, func(file, imported string) {
		folder, ours := strings.CutPrefix(imported, module)
		if !within(file, "examples/task-in-go", "examples/head-in-go") || !ours || file == "examples/head-in-go/head_test.go" {
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
// are of public packages, or that a public package has an alias of them.
func TestPublicNames(t *testing.T) {
	list := public(t)
	type mention struct{ by, of string }
	var private []mention
	aliased := map[string]bool{} // types such as "bindings/torch.Tensor"
	for _, folder := range list {
		for name, file := range sources(t, folder) {
			ours := imports(file)
			for _, d := range file.Decls {
				for _, e := range exported(d) {
					if !e.described {
						t.Errorf("%s: %s has no description", name, e.name)
					}
					for mentioned := range e.mentions {
						as, typ, _ := strings.Cut(mentioned, ".")
						at, ok := ours[as]
						if e.alias {
							aliased[at+"."+typ] = true
						} else if ok && !slices.Contains(list, at) {
							private = append(private, mention{name + ": " + e.name, at + "." + typ})
						}
					}
				}
			}
		}
	}
	for _, m := range private {
		if !aliased[m.of] {
			t.Errorf("%s needs %s, whose package docs/library.md does not list", m.by, m.of)
		}
	}
}

// imports returns the folders of this module that a file imports, by the name under which it imports them.
func imports(file *ast.File) map[string]string {
	ours := map[string]string{}
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
	return ours
}

// export is an exported name of a package.
type export struct {
	name      string
	described bool
	mentions  map[string]bool // names of other packages, as the file writes them, such as "torch.Tensor"
	alias     bool            // of a type of another package
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
			out = append(out, export{strings.TrimPrefix(receiver+"."+d.Name.Name, "."), d.Doc != nil || standardMethod(d), mentions(d.Type), false})
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					_, other := s.Type.(*ast.SelectorExpr)
					out = append(out, export{s.Name.Name, d.Doc != nil || s.Doc != nil || s.Comment != nil, mentions(s.Type), other && s.Assign.IsValid()})
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() {
						out = append(out, export{n.Name, d.Doc != nil || s.Doc != nil || s.Comment != nil, mentions(s.Type), false})
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

// mentions returns the names of other packages in a type. It leaves out unexported fields of a struct.
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
				out[x.Name+"."+n.Sel.Name] = true
			}
		}
		return true
	})
	return out
}

// TestPrivatePackages checks that the comments of packages that programs may not import have a sentence about it. Packages below internal/
// do not need it, because the compiler refuses the import.
func TestPrivatePackages(t *testing.T) {
	list, comments := public(t), map[string]string{}
	eachFile(t, func(name string, content []byte) {
		folder := path.Dir(name)
		if !within(name, "trainer", "bindings", "cuda") || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.Contains(folder, "internal") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Error(err)
			return
		}
		if file.Name.Name != "main" {
			comments[folder] += file.Doc.Text()
		}
	})
	for folder, comment := range comments {
		private, listed := strings.Contains(comment, "This package is private"), slices.Contains(list, folder)
		if private == listed {
			t.Errorf("%s: docs/library.md lists it: %v; its comment has the sentence for private packages: %v", folder, listed, private)
		}
	}
}
