package sandbox

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

func newTestCode(t *testing.T, cfg CodeConfig) *Code {
	t.Helper()
	c := NewCode(cfg)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestCode(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1})
	for program, want := range map[string]string{
		"1 + 1":                     "2",
		"print('a')\nprint('b', 3)": "a\nb 3",
		"x = 5\nprint(x)\nx * 2":    "5\n10",
		"def f(n):\n  return 1 if n < 2 else n * f(n - 1)\nf(20)": "2432902008176640000",
		"sum([x * x for x in range(10)])":                         "285",
		"pow(2, 100)":                                             "1267650600228229401496703205376",
		"pow(3, 200, 7)":                                          "2",
		"round(2.675, 1)":                                         "2.7",
		"math.sqrt(16)":                                           "4.0",
		"json.decode('[1, 2]')[1]":                                "2",
		"n = 0\nwhile n < 3:\n  n += 1\nn":                        "3",
		"for i in range(2):\n  print(i)":                          "0\n1",
		"'tail'":                                                  `"tail"`,
		"None":                                                    "(no output: print something or end with an expression)",
		"x = 1":                                                   "(no output: print something or end with an expression)",
	} {
		if got := tooltest.CallText(t, c, "program", program); got != want {
			t.Errorf("%q: got %q, want %q", program, got, want)
		}
	}
}

func TestCodeErrors(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1, Steps: 10_000})
	for program, want := range map[string]string{
		"1 +":                       "got end of file",
		"print('before')\n1 // 0":   "line 2: floored division by zero",
		"undefined_name":            "undefined",
		"load('x.star', 'y')":       "load is not available",
		"import os":                 "got import",
		"open('/etc/passwd')":       "undefined: open",
		"while True:\n  pass":       "more than 10000 steps",
		"[x for x in range(10**9)]": "got '**'",
		"pow(10, 10**9)":            "got '**'",
		"pow(10, 1000000000)":       "bits",
		"fail('my reason')":         "my reason",
	} {
		got := tooltest.CallText(t, c, "program", program)
		if !strings.HasPrefix(got, "error: ") || !strings.Contains(got, want) {
			t.Errorf("%q: %s, want an error with %q", program, got, want)
		}
	}
	if got := tooltest.CallText(t, c, "program", "print('before')\n1 // 0"); !strings.Contains(got, "printed before: before") {
		t.Errorf("got %s, want the output before the error in it", got)
	}
}

// TestCodeMemory: a program that allocates gigabytes in a few steps is ended with an error. The next call works.
func TestCodeMemory(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1, Memory: 32 << 20})
	limited := tool.WithCallPolicy(c, tool.CallPolicy{Timeout: time.Hour})
	for name, program := range map[string]string{
		"repeat":          `x = "a" * 1000000000`,
		"list of a range": `list(range(1000000000))`,
		"doubling":        "x = [0]\nfor i in range(40):\n  x += x\nlen(x)",
		"shared str":      "x = []\nfor i in range(60):\n  x = [x, x]\nlen(str(x))",
		"join":            "s = 'a' * 1000000\nfor i in range(10):\n  s = s.join([s] * 10)\nlen(s)",
		"keeping":         "x = []\nfor i in range(100000):\n  x.append('a' * 1000000)\nlen(x)",
	} {
		got := tooltest.CallText(t, limited, "program", program)
		if want := "needs more memory than it may have"; !strings.HasPrefix(got, "error: ") || !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if got := tooltest.CallText(t, limited, "program", "1 + 1"); got != "2" {
			t.Fatalf("the call after %s: got %s, want 2", name, got)
		}
	}
	if got := tooltest.CallText(t, limited, "program", "def f(n):\n  return f(n + 1)\nf(0)"); !strings.HasPrefix(got, "error: ") {
		t.Errorf("endless recursion: got %s, want an error", got)
	}
}

func TestCodeMemoryUnderLimitWorks(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1, Memory: 128 << 20})
	for range 3 {
		if got := tooltest.CallText(t, c, "program", "len('a' * 50000000)"); got != "50000000" {
			t.Fatalf("50 MB of 128: got %s", got)
		}
	}
}

// TestCodeTimeoutWithinOneStep: a single step that would take minutes, which the limit of steps cannot end, ends at the time-out.
func TestCodeTimeoutWithinOneStep(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1})
	got := tooltest.CallText(t, tool.WithCallPolicy(c, tool.CallPolicy{Timeout: 300 * time.Millisecond}), "program", "max(range(1000000000000))")
	if want := "error: code took longer than 300ms"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := tooltest.CallText(t, c, "program", "1 + 1"); got != "2" {
		t.Errorf("the call after a time-out: got %s, want 2", got)
	}
}

func TestCodeCancelled(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Call(ctx, tooltest.Arg(t, "program", "1")); err == nil {
		t.Error("a cancelled call succeeded")
	}
}

func TestCodeOutputLimit(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1, Output: 100})
	got := tooltest.CallText(t, c, "program", "for i in range(1000):\n  print('abcdefghi')")
	if want := strings.Repeat("abcdefghi\n", 10) + "\n[more output not kept]"; got != want {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
}

func TestCodeProgramsShareNothing(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 1})
	tooltest.CallText(t, c, "program", "secret = 5")
	if got := tooltest.CallText(t, c, "program", "secret"); !strings.Contains(got, "undefined") {
		t.Errorf("a program can read another program's variable: %s", got)
	}
}

func TestCodeEnvironmentStaysOutside(t *testing.T) {
	t.Setenv("MGRPO_TEST_SECRET", "sk-1")
	w, err := startSandbox(t.Context(), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer w.kill()
	for _, kv := range w.cmd.Env {
		if strings.Contains(kv, "sk-1") {
			t.Errorf("the interpreter's environment has %s", kv)
		}
	}
}

func TestCodeConcurrent(t *testing.T) {
	c := newTestCode(t, CodeConfig{Workers: 2})
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			if got := tooltest.CallText(t, c, "program", "sum(range(1000))"); got != "499500" {
				t.Error(got)
			}
		})
	}
	wg.Wait()
}

func TestCodeClosed(t *testing.T) {
	c := NewCode(CodeConfig{Workers: 1})
	tooltest.CallText(t, c, "program", "1")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := tooltest.CallText(t, c, "program", "1"); !strings.Contains(got, "closed") {
		t.Error(got)
	}
}

func TestSandboxDoesNotNest(t *testing.T) {
	t.Setenv(sandboxEnv, "1")
	if w, err := startSandbox(t.Context(), 1<<20); err == nil {
		w.kill()
		t.Error("an interpreter started another")
	}
	if err := os.Unsetenv(sandboxEnv); err != nil {
		t.Fatal(err)
	}
}
