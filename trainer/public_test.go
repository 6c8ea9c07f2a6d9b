package trainer_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// public reads the list of docs/library.md: the packages that a program outside of this repository may build upon.
func public(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/library.md")
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(trainer[a-z/]*)` \\|").FindAllStringSubmatch(string(text), -1) {
		folders = append(folders, m[1])
	}
	if len(folders) < 5 {
		t.Fatalf("docs/library.md lists %d packages", len(folders))
	}
	return folders
}

// sources parses a folder's Go files that are no tests.
func sources(t *testing.T, folder string) map[string]*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = f
	}
	if len(out) == 0 {
		t.Fatalf("no Go files in %s", folder)
	}
	return out
}

// TestExampleIsPublic: the example of a library's user builds upon public packages alone.
func TestExampleIsPublic(t *testing.T) {
	list, used := public(t), map[string]bool{}
	eachImport(t, func(file, imported string) {
		folder, ours := strings.CutPrefix(imported, module)
		if !within(file, "examples/task-in-go") || !ours {
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

// TestPublicNames: every exported name of a public package has a description, and whatever such a name mentions is
// public, too.
func TestPublicNames(t *testing.T) {
	list := public(t)
	for _, folder := range list {
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

// exported are the exported names of a declaration.
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

// standardMethod says whether a method means what it means on every type.
func standardMethod(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "String", "Unwrap"}, d.Name.Name)
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// mentions are the packages that a type names, but for what a struct's unexported fields name.
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

// TestLibraryQuotes: the Go of docs/library.md is quoted from files that are compiled and tested.
func TestLibraryQuotes(t *testing.T) {
	text, err := os.ReadFile("../docs/library.md")
	if err != nil {
		t.Fatal(err)
	}
	var compiled strings.Builder
	for _, pattern := range []string{"../examples/task-in-go/*.go", "task/research/dialect.go", "task/jsonl/example_test.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, name := range names {
			code, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			compiled.WriteString(withoutIndent(string(code)))
		}
	}
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 8 {
		t.Errorf("%d quotations", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(compiled.String(), withoutIndent(b[1])) {
			t.Errorf("this is no quotation:\n%s", b[1])
		}
	}
}

func withoutIndent(code string) string {
	var out strings.Builder
	for line := range strings.Lines(code) {
		out.WriteString(strings.TrimLeft(line, "\t"))
	}
	return out.String()
}

// TestStoryIsTold: every function that docs/architecture.md names beside algorithm 1 is in the file that it names, and every
// file of trainer/ and of trainer/run/worker/ is named.
func TestStoryIsTold(t *testing.T) {
	text, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, told, _ := strings.Cut(string(text), "| algorithm 1 |")
	told, _, _ = strings.Cut(told, "\n## ")
	files := sources(t, "trainer/run/worker")
	lines := 0
	for line := range strings.Lines(told) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.Contains(cells[1], ".go`") {
			continue
		}
		lines++
		for _, f := range quoted.FindAllStringSubmatch(cells[2], -1) {
			found := f[1] == "schedule" // a room of its own
			for _, in := range quoted.FindAllStringSubmatch(cells[1], -1) {
				for _, d := range files[filepath.Join("..", "trainer", "run", "worker", in[1])].Decls {
					if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == f[1] {
						found = true
					}
				}
			}
			if !found {
				t.Errorf("%s has no function %s", cells[1], f[1])
			}
		}
	}
	if lines < 10 {
		t.Errorf("%d lines of algorithm 1", lines)
	}
	maps.Copy(files, sources(t, "trainer"))
	for name := range files {
		if !strings.Contains(told, "`"+filepath.Base(name)+"`") {
			t.Errorf("docs/architecture.md does not say what %s is for", name)
		}
	}
}
