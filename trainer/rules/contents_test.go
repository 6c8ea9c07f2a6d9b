package rules

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rootFiles are the files at the root of the repository.
var rootFiles = []string{".clang-format", ".editorconfig", ".git-blame-ignore-revs", ".gitignore", "CHANGELOG.md", "CITATION.cff", "CMakeLists.txt",
	"CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "THIRD_PARTY.md", "go.mod", "go.sum", "ruff.toml"}

// TestRootFiles finds files at the root that do not belong there, such as the output of a command.
func TestRootFiles(t *testing.T) {
	eachFile(t, func(path string, _ []byte) {
		if !strings.Contains(path, "/") && !slices.Contains(rootFiles, path) {
			t.Errorf("%s is at the root of the repository", path)
		}
	})
}

// TestThirdParty checks that THIRD_PARTY.md names every module of go.mod.
func TestThirdParty(t *testing.T) {
	notices := read(t, "THIRD_PARTY.md")
	required := regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/?\S*) v\S+`).FindAllStringSubmatch(read(t, "go.mod"), -1)
	if len(required) == 0 {
		t.Error("no modules in go.mod")
	}
	for _, m := range required {
		if !strings.Contains(notices, "`"+m[1]+"`") {
			t.Errorf("THIRD_PARTY.md does not name %s", m[1])
		}
	}
}

// TestShimFunctionsAreCalled checks that Go calls each function of the shim around LibTorch.
func TestShimFunctionsAreCalled(t *testing.T) {
	called := map[string]bool{}
	call := regexp.MustCompile(`\bC\.(mgt_\w+)\(`)
	eachFile(t, func(path string, content []byte) {
		if strings.HasSuffix(path, ".go") {
			for _, m := range call.FindAllSubmatch(content, -1) {
				called[string(m[1])] = true
			}
		}
	})
	declared := regexp.MustCompile(`(?m)^MGT_API [^(]*\b(mgt_\w+)\(`).FindAllStringSubmatch(read(t, "bindings/torch/shim/mgrpo_torch.h"), -1)
	if len(declared) < 50 {
		t.Errorf("only %d functions were found", len(declared))
	}
	for _, m := range declared {
		if !called[m[1]] {
			t.Errorf("nothing in Go calls %s", m[1])
		}
	}
}

// large has the files above the limit of TestFileSizes, each with its reason.
var large = map[string]string{
	"testdata/gsm8k/train.jsonl":   "the GSM8K training questions",
	"testdata/tables/train.jsonl":  "the training questions of examples/tables",
	"testdata/tables/corpus.jsonl": "the rows that these questions ask for",
}

// TestFileSizes checks that the repository has no large files except those in the list.
func TestFileSizes(t *testing.T) {
	const limit = 2 << 20
	eachFile(t, func(path string, content []byte) {
		if len(content) > limit && large[path] == "" {
			t.Errorf("%s has %d bytes; more than %d belong in a download, or in the list with a reason", path, len(content), limit)
		}
	})
}

// TestNoMachinePaths checks that no file names a folder of one machine.
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

// TestScripts runs shellcheck on every script.
func TestScripts(t *testing.T) {
	scripts := []string{".ci/run", ".ci/hooks/pre-commit", ".ci/hooks/commit-msg", ".ci/subjects"}
	eachFile(t, func(path string, _ []byte) {
		if strings.HasSuffix(path, ".sh") || strings.HasSuffix(path, ".sbatch") {
			scripts = append(scripts, path)
		}
	})
	if len(scripts) < 20 {
		t.Errorf("only %d scripts: %v", len(scripts), scripts)
	}
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Fatal("shellcheck is not installed: run make setup-tests or apt-get install shellcheck")
	}
	check := exec.CommandContext(t.Context(), "shellcheck", append([]string{"-x"}, scripts...)...)
	check.Dir = root
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TestCommitSubjects checks that the hook for messages admits subjects of the form `room: change`, and refuses others.
func TestCommitSubjects(t *testing.T) {
	long := strings.Repeat("x", 72-len("docs: "))
	// Without git the hook cannot look rooms up.
	known, _ := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files").Output()
	noGit := len(known) == 0
	for message, admitted := range map[string]bool{
		"docs: a page":                         true,
		"trainer/config, docs: a key":          true,
		"\n# a comment\nREADME: links\n\nbody": true,
		"docs: " + long:                        true,
		"docs: " + long + "x":                  false,
		"docs: a page; a link":                 false,
		"a page":                               false,
		"fix the page: a link":                 false,
		"docs:a page":                          false,
		"cmd/mgrpo/eval, Eval: a flag":         true,
		"trainer/nowhere: a page":              noGit,
		"docs, ocs: a page":                    noGit,
		`Revert "a page"`:                      true,
		"Merge branch 'docs; links'":           true,
		"docs: a page\n\nOne link; two pages":  true,
	} {
		file := filepath.Join(t.TempDir(), "message")
		if err := os.WriteFile(file, []byte(message+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		hook := exec.CommandContext(t.Context(), "bash", filepath.Join(root, ".ci/hooks/commit-msg"), file)
		if out, err := hook.CombinedOutput(); (err == nil) != admitted {
			t.Errorf("the hook admits %q: %t, want %t: %s", message, err == nil, admitted, out)
		}
	}
}
