// Package sandbox runs programs that a model writes in Python, in processes without rights.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// PythonOptions names the interpreter of a Python tool and limits its programs.
type PythonOptions struct {
	Interpreter string        // a program, looked up in PATH if it has no slash
	Memory      int64         // bytes of address space of a program
	Files       int64         // bytes that a program may store in /tmp, the only folder it can write to
	Output      int           // bytes that a program may print
	Time        time.Duration // processor time of a program, rounded up to seconds
}

// Python runs each program in its own process, in a sandbox of Linux namespaces, seccomp and resource limits. The
// program sees only the interpreter's files, read-only, and an empty /tmp. It has no network, sees no other process,
// and cannot start one. The number of programs at once is the caller's choice.
//
// The process is a new start of the running program, which must call trainer.ServeChild first in main.
type Python struct {
	tool.Tool
	cfg PythonOptions
	box pythonBox
}

// NewPython returns the tool after a trial of the sandbox. If the sandbox cannot be made on this machine, the error
// states the reason.
func NewPython(ctx context.Context, cfg PythonOptions) (*Python, error) {
	p := &Python{cfg: cfg}
	version, err := p.inspect(ctx)
	if err != nil {
		return nil, err
	}
	p.Tool = tool.Func("python", "Runs a program in Python "+version+", in a process of its own each time: without network, other processes and "+
		"threads; files only in /tmp, for as long as it runs. Answers with what it prints and the value of its last line.",
		"program", "The program. Example: sum(x * x for x in range(10))", p.run)
	const trial = "import sys\nsys.stdout.write('6*7=')\n6 * 7"
	if answer, err := p.run(ctx, trial); err != nil || answer != "6*7=42" {
		if err == nil {
			err = fmt.Errorf("a trial program printed %q", answer)
		}
		return nil, fmt.Errorf("the sandbox for Python cannot be made on this machine: %w. It needs Linux 5.12 and user namespaces, which containers "+
			"and some distributions forbid (see sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "+
			"kernel.apparmor_restrict_unprivileged_userns)", err)
	}
	return p, nil
}

// inspect runs the interpreter to find its version and the folders of its modules.
func (p *Python) inspect(ctx context.Context) (version string, err error) {
	var seen struct {
		Version, Executable string
		Prefixes, Path      []string
	}
	const question = `import sys, json
print(json.dumps({"Version": "%d.%d" % sys.version_info[:2], "Executable": sys.executable, "Path": sys.path,
	"Prefixes": [sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix]}))`
	out, err := exec.CommandContext(ctx, p.cfg.Interpreter, "-I", "-c", question).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, texts.LastLine(string(exit.Stderr)))
		}
		return "", fmt.Errorf("asking the interpreter %s for its version: %w", p.cfg.Interpreter, err)
	}
	if err := json.Unmarshal(out, &seen); err != nil {
		return "", fmt.Errorf("%s is not Python 3: %w", p.cfg.Interpreter, err)
	}
	p.box = pythonBox{Executable: seen.Executable, Memory: p.cfg.Memory, Files: p.cfg.Files, Seconds: uint64((p.cfg.Time + time.Second - 1) / time.Second)}
	p.box.Mounted, err = pathsInSandbox(seen.Prefixes, seen.Path)
	return seen.Version, err
}

// pathsInSandbox returns the folders and files of an interpreter and of the libraries that it needs. It omits those within
// other folders of the list.
func pathsInSandbox(prefixes, modules []string) ([]mountedPath, error) {
	paths := []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache"}
	for _, p := range prefixes {
		for _, part := range []string{"bin", "lib", "lib64", "pyvenv.cfg"} {
			paths = append(paths, filepath.Join(p, part))
		}
	}
	for _, m := range modules {
		if base := filepath.Base(m); base == "site-packages" || base == "dist-packages" {
			paths = append(paths, m)
		}
	}
	slices.Sort(paths)
	var outer []mountedPath
	for _, p := range slices.Compact(paths) {
		if covered := slices.ContainsFunc(outer, func(k mountedPath) bool { return strings.HasPrefix(p, k.At+"/") }); covered {
			continue
		}
		real, err := filepath.EvalSymlinks(p)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		outer = append(outer, mountedPath{At: p, Real: real})
	}
	return outer, nil
}

func (p *Python) run(ctx context.Context, program string) (string, error) {
	return p.box.run(ctx, unfenced(program), p.cfg.Output)
}

// codeBlock matches a program in a code block of Markdown.
var codeBlock = regexp.MustCompile("(?s)^\\s*```[^\\n`]*\\n(.*?)\\n?[ \\t]*```\\s*$")

// unfenced returns a program without the marks of a code block around it, which are not Python.
func unfenced(program string) string {
	if m := codeBlock.FindStringSubmatch(program); m != nil {
		return m[1]
	}
	return program
}
