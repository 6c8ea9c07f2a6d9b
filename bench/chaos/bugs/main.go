// Command bugs puts bugs into the product, one at a time, and checks that a test finds each. It does not change the product's files: a bug
// replaces a piece of a file's text in an overlay for the compiler. Run it in the root of the repository:
//
//	eval "$(make env)"; go run ./bench/chaos/bugs
//
// It fails if a bug's text is not in its file exactly once, or if the product with the bug does not
// compile. It also fails if a suite fails without any bug, and if a suite passes in spite of its bug.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/cgroup"
)

func main() {
	only := flag.String("only", "", "regular expression of the names of bugs to try")
	tested := flag.Bool("tested", false, "skip the runs of the tests without bugs: they have passed already")
	flag.Parse()
	ctx, done := signal.NotifyContext(context.Background(), os.Interrupt)
	defer done()
	if err := run(ctx, *only, *tested); err != nil {
		fmt.Fprintf(os.Stderr, "bugs: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, tested bool) error {
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	tried := slices.DeleteFunc(slices.Clone(bugs), func(b bug) bool { return !chosen.MatchString(b.Name) })
	if err := withoutBugs(ctx, tried, tested); err != nil {
		return err
	}
	errs := make([]error, len(tried))
	var tests errgroup.Group
	tests.SetLimit(cgroup.UsableCores().N)
	for i, b := range tried {
		if b.Suite.Chaos == nil {
			tests.Go(func() error { errs[i] = b.report(ctx); return nil })
		}
	}
	tests.Wait()
	for i, b := range tried {
		if b.Suite.Chaos != nil { // starts its own processes, which share the cores
			errs[i] = b.report(ctx)
		}
	}
	return errors.Join(errs...)
}

// report tries the bug and prints the result.
func (b bug) report(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	started, result := time.Now(), "found"
	err := b.try(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		result, err = err.Error(), fmt.Errorf("%s: %w", b.Name, err)
	}
	fmt.Printf("%4.0f s  %s: %s by %s\n", time.Since(started).Seconds(), b.Name, result, b.Suite)
	return err
}

// withoutBugs checks that the suites pass without a bug. It runs the tests of a package together, or not at all if they
// have passed already.
func withoutBugs(ctx context.Context, tried []bug, tested bool) error {
	var suites []suite
	for _, b := range tried {
		if tested && b.Suite.Chaos == nil {
			continue
		}
		i := slices.IndexFunc(suites, func(s suite) bool { return s.Package == b.Suite.Package && slices.Equal(s.Chaos, b.Suite.Chaos) })
		if i < 0 {
			suites = append(suites, b.Suite)
		} else if b.Suite.Chaos == nil {
			suites[i].Tests += "|" + b.Suite.Tests
		}
	}
	for _, s := range suites {
		started := time.Now()
		if out, err := s.run(ctx, ""); err != nil {
			return fmt.Errorf("without a bug %s fails: %w\n%s", s, err, out)
		}
		fmt.Printf("%4.0f s  no bug: %s passes\n", time.Since(started).Seconds(), s)
	}
	return nil
}

// try puts the bug into the product and runs its suite.
func (b bug) try(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bug")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := b.overlay(dir)
	if err != nil {
		return err
	}
	if filepath.Ext(b.File) == ".go" {
		if out, err := command(ctx, "go", "build", "-overlay", overlay, "./"+filepath.Dir(b.File)); err != nil {
			return fmt.Errorf("it does not compile: %w\n%s", err, out)
		}
	}
	if _, err := b.Suite.run(ctx, overlay); err == nil {
		return errors.New("it SURVIVES")
	}
	return nil
}

// overlay writes the file with the bug, and the overlay that names it.
func (b bug) overlay(dir string) (string, error) {
	text, err := os.ReadFile(b.File)
	if err != nil {
		return "", err
	}
	if n := bytes.Count(text, []byte(b.Old)); n != 1 {
		return "", fmt.Errorf("its text is in %s %d times, want once: correct bench/chaos/bugs/bugs.go", b.File, n)
	}
	original, err := filepath.Abs(b.File)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, "changed"+filepath.Ext(b.File))
	if err := os.WriteFile(changed, bytes.Replace(text, []byte(b.Old), []byte(b.New), 1), 0o644); err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, data, 0o644)
}

// suite is a check that finds a bug: tests of a package, or a run of bench/chaos.
type suite struct {
	Package, Tests string   // Tests is a regular expression of tests in Package
	Chaos          []string // arguments of bench/chaos; nil: tests
}

func (s suite) String() string {
	if s.Chaos != nil {
		return "chaos " + strings.Join(s.Chaos, " ")
	}
	return s.Package + " " + s.Tests
}

// run runs the suite, without a bug if overlay is "".
func (s suite) run(ctx context.Context, overlay string) ([]byte, error) {
	if s.Chaos == nil {
		args := []string{"test", "-timeout", "1h", "-failfast", "-run", "^(" + s.Tests + ")$", "./" + s.Package}
		if overlay != "" {
			args[2] = "3m" // a test that hangs has found the bug
			args = append(args, "-vet=off", "-overlay", overlay)
		}
		out, err := command(ctx, "go", args...)
		if err == nil && bytes.Contains(out, []byte("[no tests to run]")) {
			return out, errors.New("there is no such test")
		}
		return out, err
	}
	const tooFewKills = "exit status 2\n"
	args := append([]string{"run", "./bench/chaos", "-work", "build/chaos/bugs", "-overlay", overlay}, s.Chaos...)
	out, err := command(ctx, "go", args...)
	if bytes.HasSuffix(out, []byte(tooFewKills)) { // the run had too few kills, but found no bug
		return out, nil
	}
	return out, err
}

func command(ctx context.Context, name string, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, name, args...).CombinedOutput()
}
