// Package golden finds the expected numbers that tests compare against.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package golden

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Env is the variable that points tests at another folder with the same layout as testdata/.
const Env = "MGRPO_GOLDENS"

// Dir returns the folder of one kind of golden ("mgrpo", "models", "families", "families-2026", "lora", "tokenizer",
// ...): below $MGRPO_GOLDENS if that is set, otherwise below the repository's testdata. If the kind is missing, the
// test fails; with the variable set, it is skipped by name instead.
func Dir(t testing.TB, kind string) string {
	t.Helper()
	return Dirs(t, kind)[0]
}

// Dirs returns the folders of several kinds. Without $MGRPO_GOLDENS, a missing kind fails the test. With it, Dirs
// returns the kinds that exist and skips the test if all are missing.
func Dirs(t testing.TB, kinds ...string) []string {
	t.Helper()
	var dirs []string
	for _, kind := range kinds {
		dir := filepath.Join(root(), kind)
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		} else if _, foreign := os.LookupEnv(Env); !foreign {
			t.Fatalf("golden: %v", err)
		}
	}
	if len(dirs) == 0 {
		t.Skipf("golden: %s: absent from %s", strings.Join(kinds, ", "), root())
	}
	return dirs
}

func root() string {
	if dir, foreign := os.LookupEnv(Env); foreign {
		return dir
	}
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "testdata")
}

// File returns Dir(t, kind)/name. If the file is absent, it skips or fails the test as Dir does.
func File(t testing.TB, kind, name string) string {
	t.Helper()
	return Dir(t, filepath.Join(kind, name))
}

// Model returns the path of a pretrained model below the repository's models/, which make gsm8k downloads. If the model
// is absent, the test fails. If $MGRPO_GOLDENS is set, as on a machine with only test programs, it is skipped instead.
func Model(t testing.TB, name string) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(file), "..", "..", "models", name)
	if _, err := os.Stat(path); err != nil {
		if _, foreign := os.LookupEnv(Env); foreign {
			t.Skipf("golden: models/%s: absent", name)
		}
		t.Fatalf("models/%s is missing: download it with make gsm8k", name)
	}
	return path
}

// Folder reads the named files that exist in a folder, either plain or compressed with gzip as NAME.gz.
func Folder(t testing.TB, dir string, names ...string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, name := range names {
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			data, err = readGzip(path + ".gz")
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
	}
	return files
}

func readGzip(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// Count prints how many cases of a kind were compared, in the form that `make test-goldens` sums up. That target runs
// the tests with Golden in their names, so Count panics in any other test.
func Count(kind string, cases int) {
	if test := callingTest(); test != "" && !strings.Contains(test, "Golden") {
		panic(fmt.Sprintf("golden: %s compares with goldens: make test-goldens does not run it without Golden in its name", test))
	}
	fmt.Printf("golden: %s: %d cases\n", kind, cases)
}

// callingTest returns the test function on the stack, or "" in a subtest whose function has another name.
func callingTest() string {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		if at := strings.LastIndex(frame.Function, ".Test"); at >= 0 {
			return frame.Function[at+1:]
		}
		if !more {
			return ""
		}
	}
}
