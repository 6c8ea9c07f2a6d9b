package metrics

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

var update = flag.Bool("update", false, "rewrite docs/metrics.md and testdata/console.txt")

func TestDoc(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		if err := os.WriteFile(path, []byte(Doc()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != Doc() {
		t.Errorf("docs/metrics.md is not what values.go says (%v): run go test ./trainer/metrics -update", err)
	}
}

// TestEveryNameIsDocumented reads the source of the packages that fill in Record.Values.
func TestEveryNameIsDocumented(t *testing.T) {
	names := map[string]string{}
	for _, dir := range []string{"..", filepath.Join("..", "learner")} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				namesIn(t, path, names)
			}
		}
	}
	number := new(float64)
	loss := mgrpo.LossStats{EntropyMean: number, RefKLMean: number, TISMean: number, TISMax: number, TISTruncatedFrac: number, BehaviourGapMean: number, BehaviourGapMax: number}
	for name := range loss.Values() { // named by the fields' tags
		names[name] = "mgrpo.LossStats"
	}
	for _, sure := range []string{"reward_mean", "accuracy", "clip_frac_low", "entropy_mean", "grad_norm", "pass_at_", "rollouts_failed"} {
		if names[sure] == "" {
			t.Errorf("%s is not found in the source: this test does not see what it should", sure)
		}
	}
	for name, where := range names {
		if !Documented(name) && name != "pass_at_" {
			t.Errorf("%s emits %q, which values.go does not document", where, name)
		}
	}
	t.Logf("%d names", len(names))
}

// namesIn collects value names from a file: keys of maps of numbers, what such maps are indexed with, and
// names handed to a mean's into.
func namesIn(t *testing.T, path string, names map[string]string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	note := func(e ast.Expr) {
		if b, ok := e.(*ast.BinaryExpr); ok { // "pass_at_" + n
			e = b.X
		}
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			name, _ := strconv.Unquote(lit.Value)
			names[name] = set.Position(lit.Pos()).String()
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
}

func isNumber(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "float64"
}
