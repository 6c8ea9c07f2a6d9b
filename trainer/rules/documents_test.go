package rules

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMarkdownLinks checks that links of Markdown files to files and headings of the repository have a target.
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

// checkLink returns an error if a link of a file has no target in the repository.
func checkLink(from, link string) error {
	target, anchor, _ := strings.Cut(link, "#")
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return nil
	}
	file := filepath.Join(root, filepath.FromSlash(from))
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
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ ([0-9.]+?)\.? `).FindAllStringSubmatch(read(t, "docs/algorithm.md"), -1) {
		headings[m[1]] = true
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
		if !within(path, "docs/decisions") && !slices.Contains([]string{"docs/native.md", "docs/memory.md", "docs/determinism.md", "docs/architecture.md", "docs/rooms.md"}, path) {
			return
		}
		for _, m := range name.FindAllSubmatch(content, -1) {
			found++
			if _, err := os.Stat(filepath.Join(root, string(m[1]))); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	if found < 100 {
		t.Errorf("%d names of files: the pattern no longer finds them", found)
	}
}

// TestFoldersAreListed checks that the table of folders in docs/architecture.md has the folders of trainer/.
func TestFoldersAreListed(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "docs/architecture.md"), "\n`trainer/` has ")
	table, _, _ = strings.Cut(table, "|\n\n")
	var listed, there []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
		listed = append(listed, row[1])
	}
	entries, err := os.ReadDir(filepath.Join(root, "trainer"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			there = append(there, e.Name())
		}
	}
	if slices.Sort(listed); !slices.Equal(listed, there) {
		t.Errorf("docs/architecture.md lists the folders %v of trainer/, want %v", listed, there)
	}
}

// TestExamplesAreListed checks that examples/README.md has a row for each example.
func TestExamplesAreListed(t *testing.T) {
	table := read(t, "examples/README.md")
	entries, err := os.ReadDir(filepath.Join(root, "examples"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(table, "\n| ["+e.Name()+"]("+e.Name()+") | ") {
			t.Errorf("examples/README.md does not list %s", e.Name())
		}
	}
}

// slug returns the anchor that Markdown viewers give a heading.
func slug(title string) string {
	title = strings.ToLower(strings.TrimSpace(title))
	title = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(title, "")
	return strings.ReplaceAll(title, " ", "-")
}

// TestLibraryQuotes checks that the Go code of docs/library.md is quoted from files that are compiled and tested.
func TestLibraryQuotes(t *testing.T) {
	var compiled strings.Builder
	for _, pattern := range []string{"examples/task-in-go/*.go", "examples/head-in-go/*.go", "trainer/task/research/grammar.go", "trainer/task/jsonl/example_test.go",
		"trainer/example_test.go", "trainer/standalone/example_test.go"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
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
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(read(t, "docs/library.md"), -1)
	if len(blocks) < 8 {
		t.Errorf("%d quotations", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(compiled.String(), withoutIndent(b[1])) {
			t.Errorf("docs/library.md has code that no compiled file has:\n%s", b[1])
		}
	}
}

// withoutIndent removes the tabs at the beginning of each line.
func withoutIndent(code string) string {
	var out strings.Builder
	for line := range strings.Lines(code) {
		out.WriteString(strings.TrimLeft(line, "\t"))
	}
	return out.String()
}

// TestAlgorithmTable checks that every function in the table of algorithm 1 in docs/architecture.md is in the
// file that the table names. The document must name every file of trainer/ and of trainer/run/worker/.
func TestAlgorithmTable(t *testing.T) {
	_, described, _ := strings.Cut(read(t, "docs/architecture.md"), "| algorithm 1 |")
	described, _, _ = strings.Cut(described, "\n## ")
	files := sources(t, "trainer/run/worker")
	lines := 0
	for line := range strings.Lines(described) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.Contains(cells[1], ".go`") {
			continue
		}
		lines++
		for _, f := range quoted.FindAllStringSubmatch(cells[2], -1) {
			found := f[1] == "schedule" // a room of its own
			for _, in := range quoted.FindAllStringSubmatch(cells[1], -1) {
				for _, d := range files["trainer/run/worker/"+in[1]].Decls {
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
		if !strings.Contains(described, "`"+filepath.Base(name)+"`") {
			t.Errorf("docs/architecture.md does not describe %s", name)
		}
	}
}
