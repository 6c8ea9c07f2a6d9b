package trainer_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The rules that keep the rooms of docs/architecture.md apart, and what a repository must not hold.

const module = "github.com/mgrpo/mgrpo/"

// notOurs are folders at the root that builds and runs fill.
var notOurs = []string{".git", "bin", "build", "dist", "runs", "models", "data"}

// eachFile visits every file of the repository by its slash-separated path from the root.
func eachFile(t *testing.T, visit func(path string, content []byte)) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if entry.IsDir() {
			if slices.Contains(notOurs, path) || entry.Name() == "__pycache__" {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() {
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
		t.Fatalf("only %d files below %s: this is not the repository", files, root)
	}
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

func within(path string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return strings.HasPrefix(path, room+"/") })
}

func TestImports(t *testing.T) {
	eachImport(t, func(file, imported string) {
		test := strings.HasSuffix(file, "_test.go")
		refuse := func(why string) { t.Errorf("%s imports %q: %s", file, imported, why) }
		switch {
		case imported == "C" && !within(file, "bindings", "cuda"):
			refuse("only bindings/ and cuda/ speak to C")
		case (imported == module+"bindings/kernels/emulated" || imported == module+"bindings/torch/emulated") && !test:
			refuse("no program links the emulator")
		case imported == module+"trainer/mgrpo/oracle" && !within(file, "trainer/run/selftest") && !test:
			refuse("only tests and trainer/run/selftest compare with the oracle")
		case within(imported+"/", "github.com/sugarme/gotch") && !within(file, "bindings/torch/gotchx"):
			refuse("gotch is built by bindings/torch/gotchx alone")
		case imported == module+"bindings/torch/gotchx" && !within(file, "cmd/mgrpo"):
			refuse("what imports gotchx is built with gotch, which takes minutes")
		case within(imported+"/", "gorgonia.org/cu") && !within(file, "cuda"):
			refuse("gorgonia/cu ends the process where no driver is: only cuda/, behind its build tag")
		}
	})
}

func TestNoCUDAWithoutTag(t *testing.T) {
	eachImport(t, func(file, imported string) {
		if !within(imported+"/", "gorgonia.org/cu") {
			return
		}
		content, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(content, []byte("//go:build cuda\n")) {
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

// Every module of go.mod is in THIRD_PARTY.md with its licence.
func TestThirdParty(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	notices, err := os.ReadFile("../THIRD_PARTY.md")
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/?\S*) v\S+`).FindAllSubmatch(mod, -1)
	if len(required) == 0 {
		t.Error("no modules in go.mod")
	}
	for _, m := range required {
		if !bytes.Contains(notices, fmt.Appendf(nil, "`%s`", m[1])) {
			t.Errorf("THIRD_PARTY.md does not name %s", m[1])
		}
	}
}

// large are the files above the limit, each with its reason.
var large = map[string]string{
	"testdata/gsm8k/train.jsonl":   "the GSM8K training questions",
	"testdata/tables/train.jsonl":  "the training questions of examples/tables",
	"testdata/tables/corpus.jsonl": "the rows that they are about",
}

func TestFileSizes(t *testing.T) {
	const limit = 2 << 20
	eachFile(t, func(path string, content []byte) {
		if len(content) > limit && large[path] == "" {
			t.Errorf("%s has %d bytes; more than %d belong in a download, or in the list with a reason", path, len(content), limit)
		}
	})
}

func TestNoMachinePaths(t *testing.T) {
	// In two parts, so that this file does not contain what it looks for.
	folder := regexp.MustCompile(`(?:^|[\s"'=(:])` + `/(` + `home|root|Users|work|mnt)/[A-Za-z0-9._-]+`)
	eachFile(t, func(path string, content []byte) {
		if within(path, "testdata") || strings.Contains(path, "/testdata/") || strings.HasSuffix(path, ".sum") {
			return
		}
		for i, line := range bytes.Split(content, []byte("\n")) {
			if m := folder.Find(line); m != nil {
				t.Errorf("%s:%d: %q is a folder of one machine", path, i+1, bytes.TrimSpace(m))
			}
		}
	})
}

// Links of Markdown files to files of the repository lead somewhere.
func TestMarkdownLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)`)
	fence := regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]*`")
	eachFile(t, func(path string, content []byte) {
		if !strings.HasSuffix(path, ".md") || within(path, "testdata") {
			return
		}
		for _, m := range link.FindAllSubmatch(fence.ReplaceAll(content, nil), -1) {
			if err := checkLink(path, string(m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
}

func checkLink(from, link string) error {
	target, anchor, _ := strings.Cut(link, "#")
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return nil
	}
	file := filepath.Join("..", filepath.FromSlash(from))
	if target != "" {
		file = filepath.Join(filepath.Dir(file), filepath.FromSlash(target))
	}
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("link %q: %v", link, err)
	}
	if anchor == "" || !strings.HasSuffix(file, ".md") {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(content)) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' && slug(title) == anchor {
			return nil
		}
	}
	return fmt.Errorf("link %q: no such heading", link)
}

// TestSectionReferences checks that code that names a section of docs/algorithm.md names one that exists.
func TestSectionReferences(t *testing.T) {
	document, err := os.ReadFile("../docs/algorithm.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ ([0-9.]+?)\.? `).FindAllSubmatch(document, -1) {
		headings[string(m[1])] = true
	}
	reference := regexp.MustCompile(`algorithm\.md §([0-9]+(?:\.[0-9]+)?)`)
	found := 0
	eachFile(t, func(path string, content []byte) {
		for _, m := range reference.FindAllSubmatch(content, -1) {
			found++
			if !headings[string(m[1])] {
				t.Errorf("%s: docs/algorithm.md has no section %s", path, m[1])
			}
		}
	})
	if found < 10 {
		t.Errorf("%d references: the pattern no longer finds them", found)
	}
}

// TestDocumentsNameFiles checks that the documents on the architecture name folders and files that exist.
func TestDocumentsNameFiles(t *testing.T) {
	name := regexp.MustCompile("`((?:trainer|kernels|bindings|cuda|bench)/[\\w./-]+)`")
	found := 0
	eachFile(t, func(path string, content []byte) {
		if !within(path, "docs/decisions") && !slices.Contains([]string{"docs/native.md", "docs/memory.md", "docs/determinism.md"}, path) {
			return
		}
		for _, m := range name.FindAllSubmatch(content, -1) {
			found++
			if _, err := os.Stat(filepath.Join("..", string(m[1]))); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	if found < 100 {
		t.Errorf("%d names of files: the pattern no longer finds them", found)
	}
}

// slug is the anchor of a heading as Markdown viewers make it.
func slug(title string) string {
	title = strings.ToLower(strings.TrimSpace(title))
	title = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(title, "")
	return strings.ReplaceAll(title, " ", "-")
}

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
