package sandbox

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

// roomy has limits that no program of a test reaches unless it means to.
var roomy = PythonOptions{Interpreter: "python3", Memory: 512 << 20, Files: 16 << 20, Output: 64 << 10, Time: 10 * time.Second}

// newTestPython returns the tool, or skips the test on a machine that forbids user namespaces or has no Python.
func newTestPython(t *testing.T, cfg PythonOptions) *Python {
	t.Helper()
	p, err := NewPython(t.Context(), cfg)
	if err != nil && (strings.Contains(err.Error(), "operation not permitted") || strings.Contains(err.Error(), "permission denied") || strings.Contains(err.Error(), "executable file not found")) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPython(t *testing.T) {
	p := newTestPython(t, roomy)
	for program, want := range map[string]string{
		"1 + 1":                     "2",
		"print('a')\nprint('b', 3)": "a\nb 3",
		"x = 5\nprint(x)\nx * 2":    "5\n10",
		"import math, json, collections, re, itertools, fractions, decimal, datetime, statistics\nf'{math.sqrt(2):.3f} {fractions.Fraction(1, 3)}'": "'1.414 1/3'",
		"class A:\n  def __init__(self): self.x = 2**100\nA().x":                                                                                    "1267650600228229401496703205376",
		"def f(n):\n  return 1 if n < 2 else n * f(n - 1)\nf(20)":                                                                                   "2432902008176640000",
		"with open('/tmp/a', 'w') as f: f.write('kept')\nopen('a').read()":                                                                          "'kept'",
		"import os\nos.path.exists('/tmp/a')":                                                                                                       "False",
		"'é😀'":                                                                                                                                      "'é😀'",
		"None":                                                                                                                                      "(no output: print something or end with an expression)",
		"x = 1":                                                                                                                                     "(no output: print something or end with an expression)",
		"list({'b', 'a', 'c'}) == list({'b', 'a', 'c'})":                                                                                            "True",
		"import sys\nprint('before')\nsys.exit(0)":                                                                                                  "before",
		"print('before')\n1 // 0":                                                                                                                   "error: line 2: ZeroDivisionError: integer division or modulo by zero\nprinted before: before",
		"def f():\n  return g()\n\nf()":                                                                                                             "error: line 2: NameError: name 'g' is not defined",
		"1 +":                                                                                                                                       "error: line 1: SyntaxError: invalid syntax",
		"raise SystemExit('my reason')":                                                                                                             "error: my reason",
		"```python\n6 * 7\n```":                                                                                                                     "42",
		"\n```\nx = 2\nprint('```')\nx\n``` \n":                                                                                                     "```\n2",
		"```py\n1 // 0\n```":                                                                                                                        "error: line 1: ZeroDivisionError: integer division or modulo by zero",
		"input()":                                                                                                                                   "error: line 1: EOFError: EOF when reading a line",
		"'\\ud800'":                                                                                                                                 "'\\ud800'",
		"def f(): return 5\nimport timeit\ntimeit.repeat('assert f() == 5', 'from __main__ import f', number=1) != []": "True",
		"import pickle\nclass P: x = 7\npickle.loads(pickle.dumps(P())).x":                                             "7",
		"def f():\n  \"\"\"\n  >>> f()\n  2\n  \"\"\"\n  return 2\nimport doctest\ndoctest.testmod()":                  "TestResults(failed=0, attempted=1)",
		"import sys\nfor i in range(3000): print('warning', i, file=sys.stderr)\nprint('the answer')":                  "the answer",
	} {
		if got := tooltest.CallText(t, p, "program", program); got != want {
			t.Errorf("%q: got %q, want %q", program, got, want)
		}
	}
}

// TestPythonHostile: programs that try forbidden actions fail with the given error, or print that they had no effect.
func TestPythonHostile(t *testing.T) {
	p := newTestPython(t, PythonOptions{Interpreter: "python3", Memory: 256 << 20, Files: 1 << 20, Output: 64 << 10, Time: time.Second})
	secret := filepath.Join(t.TempDir(), "metrics.jsonl")
	if err := os.WriteFile(secret, []byte("the run"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MGRPO_TEST_KEY", "sk-secret")
	const libc = "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
	for program, want := range map[string]string{
		// files
		"open('/etc/shadow').read()":    "FileNotFoundError",
		"open('/etc/passwd').read()":    "FileNotFoundError",
		"open('" + secret + "').read()": "FileNotFoundError",
		"import os\nos.path.exists('/proc/1/environ'), os.path.exists('/sys'), os.path.exists('/old'), os.path.exists('/home'), os.path.exists(os.path.join('/root', '.ssh'))": "(False, False, False, False, False)",
		"open('../../../../../../etc/shadow').read()":                              "FileNotFoundError",
		"import os\nos.symlink('/etc/shadow', 'a')\nopen('a').read()":              "FileNotFoundError",
		"open('/usr/lib/mine', 'w')":                                               "Read-only file system",
		"open('/mine', 'w')":                                                       "Read-only file system",
		"import os\nos.mkdir('/etc/mine')":                                         "Read-only file system",
		"import os\nos.mknod('a', 0o600 | 0o060000, os.makedev(8, 0))":             "PermissionError",
		"import os\nsorted(os.listdir('/dev'))":                                    "['null', 'urandom']",
		"import os\n[k for k in os.environ if 'MGRPO' in k]":                       "[]",
		"import os\n[n for n in range(3, 64) if os.path.exists('/dev/fd/%d' % n)]": "[]",
		"import os\nfor n in range(3, 60):\n  try:\n    os.fstat(n)\n    print('open', n)\n  except OSError: pass\n'none'": "'none'",
		// processes
		"import os\nwhile True: os.fork()":                                                               "PermissionError",
		"import subprocess\nsubprocess.run(['/bin/sh', '-c', 'id'])":                                     "Operation not permitted",
		"import threading\nwhile True: threading.Thread(target=print).start()":                           "can't start new thread",
		"import multiprocessing\nmultiprocessing.Pool(2)":                                                "error: ",
		"import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.getppid()":                         "0",
		"import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept ProcessLookupError: print('alone')": "alone",
		"import os\nos.getpid()":                                                   "1",
		"import os\nos.setuid(0)":                                                  "OSError",
		libc + "c.ptrace(0, 0, 0, 0), ctypes.get_errno()":                          "(-1, 1)",
		libc + "c.unshare(0x10000000), ctypes.get_errno()":                         "(-1, 1)",
		libc + "c.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None), ctypes.get_errno()": "(-1, 1)",
		libc + "c.prctl(22, 0, 0, 0, 0), c.sethostname(b'x', 1)":                   "(-1, -1)",
		libc + "c.memfd_create(b'a', 0), ctypes.get_errno()":                       "(-1, 1)",
		// network
		"import socket\nsocket.create_connection(('1.1.1.1', 53), 5)":            "error: ",
		"import socket\nsocket.socket()":                                         "PermissionError",
		"import socket\nsocket.socket(socket.AF_UNIX)":                           "PermissionError",
		"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:6379')": "error: ",
		"import socket\nsocket.if_nameindex()":                                   "error: ",
		// resources
		"a = 'x' * (1 << 30)":                                                           "needs more memory than it may have",
		"a = []\nwhile True: a.append('x' * 1000000)":                                   "needs more memory than it may have",
		"with open('a', 'wb') as f: f.write(bytes(2 << 20))":                            "OSError",
		"for n in range(100):\n  with open(str(n), 'wb') as f: f.write(bytes(1 << 19))": "No space left on device",
		"for n in range(100000): open('f%d' % n, 'w').close()":                          "No space left on device",
		"f = [open('f%d' % n, 'w') for n in range(100)]":                                "Too many open files",
		"while True: pass": "more than 1 s of processor time",
		"import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass": "more than 1 s of processor time",
		"while True: print('water')":                                 "[more output not kept; the program was ended]",
		"import sys\nsys.stderr.write('water\\n')\nwhile True: pass": "more than 1 s of processor time\non standard error: water",
		"import sys\nwhile True: sys.stderr.write('water')":          "water",
		"import os\nos.close(1)\nos.close(2)\n1":                     "error: ",
		"def f(): f()\nf()":                                          "RecursionError",
		"import ctypes\nctypes.string_at(0)":                         "error: ",
		"import os\nos.abort()":                                      "error: ",
	} {
		if got := tooltest.CallText(t, p, "program", program); !strings.Contains(got, want) || strings.Contains(got, "the run") || strings.Contains(got, "root:") {
			t.Errorf("%q: got %.300q, want %q", program, got, want)
		}
	}
	if got := tooltest.CallText(t, p, "program", "6 * 7"); got != "42" {
		t.Errorf("a call after these programs: got %q", got)
	}
}

// TestPythonBelowTmp: the sandbox shows an interpreter that lies below /tmp, such as that of a virtual environment.
func TestPythonBelowTmp(t *testing.T) {
	newTestPython(t, roomy) // skips the test if there is no sandbox
	dir, err := os.MkdirTemp("/tmp", "venv")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if out, err := exec.CommandContext(t.Context(), "python3", "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Skipf("no virtual environment: %v: %s", err, out)
	}
	cfg := roomy
	cfg.Interpreter = filepath.Join(dir, "bin", "python3")
	p := newTestPython(t, cfg)
	program := "import sys\nopen('/tmp/a', 'w').close()\ntry: open(sys.prefix + '/lib/b', 'w')\nexcept OSError as e: print(e.strerror)\nsys.prefix"
	if got, want := tooltest.CallText(t, p, "program", program), "Read-only file system\n'"+dir+"'"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPythonEndsWithContext: a program that waits without using the processor is ended when the context is.
func TestPythonEndsWithContext(t *testing.T) {
	p := newTestPython(t, roomy)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := p.Call(ctx, tooltest.Arg(t, "program", "import time\ntime.sleep(3600)")); err != context.Canceled {
		t.Errorf("%v", err)
	}
}

// TestPythonRefused: if the tool cannot be started, the error names the missing part.
func TestPythonRefused(t *testing.T) {
	for interpreter, want := range map[string]string{"/nowhere/python3": "/nowhere/python3", "/bin/true": "not Python 3"} {
		other := roomy
		other.Interpreter = interpreter
		if _, err := NewPython(t.Context(), other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v", interpreter, err)
		}
	}
	p := newTestPython(t, roomy)
	p.box.Mounted = nil // hides the interpreter from the sandbox
	if _, err := p.box.run(t.Context(), "1", 10); err == nil || !strings.Contains(err.Error(), "starting ") {
		t.Errorf("a hidden interpreter: got error %v, want one of starting it", err)
	}
}
