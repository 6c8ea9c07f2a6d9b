package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.." // of the repository
	module = "github.com/mgrpo/mgrpo/"
)

// notOurs are folders at the root that builds and runs fill. In a worktree .git is a file.
var notOurs = []string{".git", "bin", "build", "dist", "runs", "models", "data"}

// eachFile visits every file of the repository by its slash-separated path from the root.
func eachFile(t *testing.T, visit func(path string, content []byte)) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		skipped := slices.Contains(notOurs, path) || entry.Name() == "__pycache__"
		switch {
		case entry.IsDir() && skipped:
			return filepath.SkipDir
		case skipped || !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		files++
		visit(path, content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Fatalf("%s has only %d files: it is not the repository", root, files)
	}
}

// read returns a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// eachImport visits every import of every Go file.
func eachImport(t *testing.T, visit func(file, imported string)) {
	t.Helper()
	eachFile(t, func(path string, content []byte) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, content, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		for _, i := range parsed.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			visit(path, imported)
		}
	})
}

// within reports whether a path is inside one of the folders.
func within(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(path, folder+"/") })
}

// sources parses a folder's Go files, except tests, by their paths from the root.
func sources(t *testing.T, folder string) map[string]*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
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
		out[path.Join(folder, filepath.Base(name))] = f
	}
	if len(out) == 0 {
		t.Fatalf("no Go files in %s", folder)
	}
	return out
}

// typeName returns the name of a type without stars and type arguments, such as Name or, of another package, package.Name. Otherwise it
// returns "".
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return typeName(e.X) + "." + e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}
