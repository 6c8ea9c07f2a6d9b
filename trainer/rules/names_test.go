package rules

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDocumentsNameCode checks that names such as `trainer/endtoend.TestLedger` and `passes.dispatch` in the documents on the
// architecture are declared: in the package, or as a method or a field of the type. Names of files, and those that begin with
// neither a package nor a type, are not checked.
func TestDocumentsNameCode(t *testing.T) {
	declared := declarations(t)
	config := read(t, "docs/config.md")
	name := regexp.MustCompile("`(?:[a-z]+/)*([A-Za-z]\\w*)\\.([A-Za-z]\\w*)`")
	found := 0
	eachFile(t, func(file string, content []byte) {
		if !within(file, "docs/decisions") && !slices.Contains([]string{"docs/architecture.md", "docs/algorithm.md", "docs/extending.md", "docs/reliability.md"}, file) {
			return
		}
		for _, m := range name.FindAllSubmatch(content, -1) {
			first, second := string(m[1]), string(m[2])
			isFile := slices.Contains([]string{"cpp", "cu", "go", "h", "json", "jsonl", "lua", "md", "py", "txt"}, second)
			if declared[first] == nil || isFile || strings.Contains(config, "`"+first+"."+second) || strings.Contains(config, "## "+first) {
				continue
			}
			found++
			if !declared[first][second] {
				t.Errorf("%s: %s.%s is not declared", file, first, second)
			}
		}
	})
	if found < 50 {
		t.Errorf("%d names: the pattern no longer finds them", found)
	}
}

// TestTestNames refuses words in names of tests that tell a story. A name has the behaviour that the test checks, such as
// TestLongWaitsAreReported.
func TestTestNames(t *testing.T) {
	refused := regexp.MustCompile("Told|Says|GoOn|Hears|WhatThere|(Are|Is)No[A-Z]")
	found := 0
	eachGoFile(t, func(name, _ string, _ []byte, _ *token.FileSet, file *ast.File) {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasSuffix(name, "_test.go") && strings.HasPrefix(f.Name.Name, "Test") {
				found++
				if part := refused.FindString(f.Name.Name); part != "" {
					t.Errorf("%s: %s: name the behaviour that it checks, without %q", name, f.Name.Name, part)
				}
			}
		}
	})
	if found < 1000 {
		t.Errorf("%d tests: the pattern no longer finds them", found)
	}
}

// declarations returns the names that each package declares, and the methods and fields of each type.
func declarations(t *testing.T) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	add := func(scope string, names ...*ast.Ident) {
		if out[scope] == nil {
			out[scope] = map[string]bool{}
		}
		for _, n := range names {
			out[scope][n.Name] = true
		}
	}
	eachGoFile(t, func(_, folder string, _ []byte, _ *token.FileSet, file *ast.File) {
		pkg := strings.TrimSuffix(path.Base(folder), "_test")
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					add(typeName(d.Recv.List[0].Type), d.Name)
				}
				add(pkg, d.Name)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						add(pkg, s.Names...)
					case *ast.TypeSpec:
						add(pkg, s.Name)
						for _, f := range fieldList(s.Type) {
							add(s.Name.Name, f.Names...)
						}
					}
				}
			}
		}
	})
	return out
}

// fieldList returns the fields of a struct or the methods of an interface.
func fieldList(e ast.Expr) []*ast.Field {
	switch e := e.(type) {
	case *ast.StructType:
		return e.Fields.List
	case *ast.InterfaceType:
		return e.Methods.List
	}
	return nil
}
