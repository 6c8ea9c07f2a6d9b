package metrics

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// TestNames compares the constants with the names that docs/metrics.md explains.
func TestNames(t *testing.T) {
	explained := map[string]bool{}
	for _, row := range rows() {
		name := namePrefix(row[0])
		if explained[name] {
			t.Errorf("docs/metrics.md explains %s twice", name)
		}
		explained[name] = true
		if meaning, unit := Explain(row[0]); meaning != row[3] || unit != row[1] || meaning == "" {
			t.Errorf("Explain(%q) returns %q and %q", row[0], meaning, unit)
		}
	}
	constants := constants(t, "names.go")
	for name, constant := range constants {
		if !explained[name] {
			t.Errorf("docs/metrics.md does not explain %s = %q", constant, name)
		}
	}
	for name := range explained {
		if constants[name] == "" {
			t.Errorf("%q has no constant in names.go", name)
		}
	}
	number := new(float64)
	loss := mgrpo.LossStats{EntropyMean: number, RefKLMean: number, TISMean: number, TISMax: number, TISTruncatedFrac: number, BehaviourGapMean: number, BehaviourGapMax: number}
	for name := range loss.Values() { // the fields' tags have the names
		if constants[name] == "" {
			t.Errorf("mgrpo.LossStats has %q, which has no constant in names.go", name)
		}
	}
}

// constants returns the constants of a file by their values.
func constants(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			value, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if again := out[value]; again != "" {
				t.Errorf("%s and %s are both %q", again, spec.Names[0], value)
			}
			out[value] = spec.Names[0].Name
		}
		return true
	})
	return out
}

// TestNoNameIsALiteral reads the source of the packages that fill in Record.Values. They use the constants.
func TestNoNameIsALiteral(t *testing.T) {
	names := 0
	for _, dir := range []string{"run/worker", "engine/learner", "team/archive"} {
		files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				names += namesIn(t, path)
			}
		}
	}
	if names < 50 {
		t.Errorf("only %d names: the test no longer finds them", names)
	}
}

// namesIn counts the names of values in a file: keys of maps of numbers, indexes into such maps, and names passed to a mean's into. It
// reports literals.
func namesIn(t *testing.T, path string) (names int) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	note := func(e ast.Expr) {
		if b, ok := e.(*ast.BinaryExpr); ok { // PassAtPrefix + n
			e = b.X
		}
		switch e := e.(type) {
		case *ast.BasicLit:
			if e.Kind == token.STRING {
				t.Errorf("%s: %s is a literal: use a constant of trainer/metrics", set.Position(e.Pos()), e.Value)
			}
		case *ast.SelectorExpr:
			names++
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IndexExpr:
			if sel, ok := n.X.(*ast.SelectorExpr); ok && sel.Sel.Name == "Values" {
				note(n.Index)
			} else if id, ok := n.X.(*ast.Ident); ok && id.Name == "v" {
				note(n.Index)
			}
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "into" && len(n.Args) == 2 {
				note(n.Args[1])
			}
		case *ast.CompositeLit:
			if m, ok := n.Type.(*ast.MapType); ok && isNumber(m.Value) {
				for _, e := range n.Elts {
					note(e.(*ast.KeyValueExpr).Key)
				}
			}
		}
		return true
	})
	return names
}

func isNumber(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "float64"
}
