package rules

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestImports checks the packages that few folders may import.
func TestImports(t *testing.T) {
	eachImport(t, func(file, imported string) {
		test := strings.HasSuffix(file, "_test.go")
		refuse := func(why string) { t.Errorf("%s imports %q: %s", file, imported, why) }
		switch {
		case imported == "C" && !within(file, "bindings", "cuda"):
			refuse("only bindings/ and cuda/ call C")
		case (imported == module+"bindings/kernels/emulated" || imported == module+"bindings/torch/emulated") && !test:
			refuse("no program links the emulator")
		case imported == module+"trainer/mgrpo/oracle" && !within(file, "trainer/run/selftest") && !test:
			refuse("only tests and trainer/run/selftest compare with the oracle")
		case within(imported+"/", "github.com/sugarme/gotch") && !within(file, "bindings/torch/gotchx", "examples/head-in-go"):
			refuse("gotch is built by bindings/torch/gotchx alone, and by the example of its users")
		case imported == module+"bindings/torch/gotchx" && !within(file, "trainer/withgotch", "bindings/torch/gotchx", "examples/head-in-go"):
			refuse("a program that imports gotchx needs gotch, which compiles for minutes")
		case imported == module+"trainer/withgotch" && !within(file, "cmd/mgrpo", "examples"):
			refuse("it links gotch, which compiles for minutes")
		case within(imported+"/", "gorgonia.org/cu") && !within(file, "cuda"):
			refuse("gorgonia/cu ends the process if there is no driver: only cuda/ imports it, with a build tag")
		}
	})
}

func TestNoCUDAWithoutTag(t *testing.T) {
	eachImport(t, func(file, imported string) {
		if !within(imported+"/", "gorgonia.org/cu") {
			return
		}
		if !strings.HasPrefix(read(t, file), "//go:build cuda\n") {
			t.Errorf("%s imports %s without the build tag cuda", file, imported)
		}
	})
}

func TestKernelsKnowNoFramework(t *testing.T) {
	include := regexp.MustCompile(`(?m)^\s*#\s*include\s*[<"](torch|ATen|c10|caffe2)/`)
	eachFile(t, func(path string, content []byte) {
		if within(path, "kernels") && include.Match(content) {
			t.Errorf("%s includes LibTorch: %s", path, include.Find(content))
		}
	})
}

// TestImportGroups checks that a blank line separates the standard library from other imports.
func TestImportGroups(t *testing.T) {
	eachGoFile(t, func(name, _ string, _ []byte, fset *token.FileSet, file *ast.File) {
		line, kind := 0, false
		for i, s := range file.Imports {
			imported, _ := strconv.Unquote(s.Path.Value)
			if at := fset.Position(s.Pos()).Line; i > 0 && at == line+1 && standard(imported) != kind {
				t.Errorf("%s:%d: a blank line is missing before %s", name, at, imported)
			}
			line, kind = fset.Position(s.Pos()).Line, standard(imported)
		}
	})
}
