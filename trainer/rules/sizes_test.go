package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// The types of the story and of its archive have so few fields and methods that a reader keeps them in mind.
func TestTypesAreSmall(t *testing.T) {
	const mostFields, mostMethods = 15, 20
	structs := map[string]map[string]*ast.StructType{"trainer": {}, "trainer/run/worker": {}, "trainer/team/archive": {}}
	methods := map[string]map[string]int{"trainer": {}, "trainer/run/worker": {}}
	eachFile(t, func(path string, content []byte) {
		folder := filepath.ToSlash(filepath.Dir(path))
		here := structs[folder]
		if here == nil || !strings.HasSuffix(path, ".go") {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, content, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					here[n.Name.Name] = s
				}
			case *ast.FuncDecl:
				if of := methods[folder]; of != nil && n.Recv != nil && !strings.HasSuffix(path, "_test.go") {
					of[typeName(n.Recv.List[0].Type)]++
				}
			}
			return true
		})
	})
	for folder, here := range structs {
		if len(here) == 0 {
			t.Errorf("no types were found in %s", folder)
		}
		for name, s := range here {
			if n := fieldsOf(s, here); n > mostFields {
				t.Errorf("%s: %s has %d fields, more than %d", folder, name, n, mostFields)
			}
			n := methods[folder][name]
			for _, f := range s.Fields.List {
				if len(f.Names) == 0 {
					n += methods[folder][typeName(f.Type)]
				}
			}
			if n > mostMethods {
				t.Errorf("%s: %s has %d methods, those of embedded types included, more than %d", folder, name, n, mostMethods)
			}
		}
	}
}

// fieldsOf counts a struct's fields. In place of an embedded struct of the same package its fields count.
func fieldsOf(s *ast.StructType, same map[string]*ast.StructType) (n int) {
	for _, f := range s.Fields.List {
		if embedded := same[typeName(f.Type)]; len(f.Names) == 0 && embedded != nil {
			n += fieldsOf(embedded, same)
		} else {
			n += max(len(f.Names), 1)
		}
	}
	return n
}
