package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yuin/gopher-lua/parse"
)

var update = flag.Bool("update", false, "write the list of bugs into the document")

const document = "../../../docs/reliability.md"

// TestPromisesAreHeld: every test that docs/reliability.md names exists, and every promise names a test or a chaos run.
func TestPromisesAreHeld(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z/]+)\\.(Test\\w+)`").FindAllStringSubmatch(string(text), -1)
	for _, m := range named {
		checkTest(t, m[1], m[2])
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| promise") && !strings.HasPrefix(line, "| bug") && !strings.Contains(line, "Test") && !strings.Contains(line, "chaos") {
			t.Errorf("this promise names no test: %s", line)
		}
	}
	if len(named) < 40 {
		t.Errorf("the document names %d tests, want 40 or more", len(named))
	}
}

// TestBugs: the text that a bug replaces occurs once in its file, a script with a bug is Lua, and the tests of its suite exist.
func TestBugs(t *testing.T) {
	names := map[string]bool{}
	for _, b := range bugs {
		text, err := os.ReadFile(filepath.Join("../../..", b.File))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte(b.Old)); n != 1 {
			t.Errorf("%s: the text occurs %d times in %s, want once", b.Name, n, b.File)
		}
		if filepath.Ext(b.File) == ".lua" {
			changed := strings.Replace(string(text), b.Old, b.New, 1)
			if _, err := parse.Parse(strings.NewReader(changed), b.File); err != nil {
				t.Errorf("%s: the script with the bug is not Lua, so any test finds it: %v", b.Name, err)
			}
		}
		if names[b.Name] {
			t.Errorf("two bugs have the name %q", b.Name)
		}
		names[b.Name] = true
		if b.Suite.Chaos != nil {
			continue
		}
		for name := range strings.SplitSeq(b.Suite.Tests, "|") {
			checkTest(t, b.Suite.Package, name)
		}
	}
}

func checkTest(t *testing.T, folder, name string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("\nfunc "+name+"(t *testing.T) {")) {
			return
		}
	}
	t.Errorf("%s has no test %s", folder, name)
}

// TestBugsAreListed: docs/reliability.md lists all bugs.
func TestBugsAreListed(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	from := bytes.Index(text, []byte("-update -->\n"))
	to := bytes.Index(text, []byte("<!-- end -->"))
	if from < 0 || to < from {
		t.Fatal("the document lacks the two marks around the list")
	}
	from += len("-update -->\n")
	if want := bugTable(); string(text[from:to]) != want {
		if !*update {
			t.Fatalf("the list in %s is out of date: go test ./bench/chaos/bugs -update", document)
		}
		whole := string(text[:from]) + want + string(text[to:])
		if err := os.WriteFile(document, []byte(whole), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func bugTable() string {
	var out strings.Builder
	out.WriteString("| bug | in | found by |\n|---|---|---|\n")
	for _, b := range bugs {
		var found []string
		for name := range strings.SplitSeq(b.Suite.Tests, "|") {
			found = append(found, fmt.Sprintf("`%s.%s`", b.Suite.Package, name))
		}
		if b.Suite.Chaos != nil {
			found = []string{"`bench/chaos " + strings.Join(b.Suite.Chaos, " ") + "`"}
		}
		fmt.Fprintf(&out, "| %s | `%s` | %s |\n", b.Name, b.File, strings.Join(found, ", "))
	}
	return out.String()
}
