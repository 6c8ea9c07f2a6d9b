package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// pythonEnv marks a process that becomes a sandboxed Python. Its value is a pythonBox as JSON.
const pythonEnv = "MGRPO_SANDBOX_PYTHON"

// pythonBox is the sandbox of one interpreter.
type pythonBox struct {
	Executable    string
	Mounted       []mountedPath
	Memory, Files int64  // bytes
	Seconds       uint64 // processor time
}

// mountedPath is a folder or file of this machine that the sandbox mounts read-only. Real is its path without symbolic
// links.
type mountedPath struct{ At, Real string }

// boxFailed is the exit status of a process that could not set up its sandbox.
const boxFailed = 125

// pythonStart limits its memory to the number of bytes in its argument, reads a program from standard input and runs
// it as the module __main__. If the last line is an expression, it prints the value.
const pythonStart = `
import ast, resource, sys, traceback, types
main = sys.modules["__main__"] = types.ModuleType("__main__")
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
del sys.argv[1:], resource
def run(source):
    tree = ast.parse(source, "program")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    names = main.__dict__
    exec(compile(tree, "program", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "program", "eval"), names)
        if value is not None:
            print(repr(value))
try:
    run(sys.stdin.read())
    sys.stdout.flush()
except MemoryError:
    sys.exit("the program needs more memory than it may have")
except Exception as e:
    lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == "program"]
    if isinstance(e, SyntaxError) and e.filename == "program":
        lines, e = [e.lineno], SyntaxError(e.msg)
    at = "line %d: " % lines[-1] if lines else ""
    sys.exit(at + "".join(traceback.format_exception_only(type(e), e)).strip())
`

// run runs a program and returns its output.
func (b pythonBox) run(ctx context.Context, program string, output int) (string, error) {
	cmd, err := b.command()
	if err != nil {
		return "", err
	}
	out, errs := &boundedOutput{cmd: cmd, max: output}, &texts.Tail{Max: 8 << 10} // warnings may be long, and errors are at their end
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(program), out, errs
	// The kernel kills the process when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return "", tool.Failed(fmt.Errorf("starting a process in new namespaces: %w", err))
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	if !stop() {
		return "", context.Cause(ctx)
	}
	text := strings.ToValidUTF8(strings.TrimRight(out.text.String(), "\n"), "\ufffd")
	if out.full {
		return text + "\n[more output not kept; the program was ended]", nil
	}
	var exit *exec.ExitError
	switch {
	case err == nil && text == "":
		return "(no output: print something or end with an expression)", nil
	case err == nil:
		return text, nil
	case errors.As(err, &exit) && exit.ExitCode() == boxFailed:
		return "", tool.Failed(errors.New(strings.TrimSpace(errs.String())))
	}
	why := b.reason(err, cmd.ProcessState, strings.TrimSpace(errs.String()))
	if text != "" {
		why += "\nprinted before: " + text
	}
	return "", errors.New(why)
}

// reason returns the reason why a program failed, as a text for the model.
func (b pythonBox) reason(err error, state *os.ProcessState, stderr string) string {
	status, ok := state.Sys().(syscall.WaitStatus)
	signaled := ok && status.Signaled()
	// The kernel counts ticks for the limit. On a busy virtual machine they exceed the time that it reports by a third and more.
	used := state.UserTime() + state.SystemTime()
	var why string
	switch {
	case !signaled && stderr != "":
		return stderr
	case !signaled:
		return fmt.Sprintf("the program ended with %v", err)
	case used.Seconds() > 0.5*float64(b.Seconds):
		why = fmt.Sprintf("the program took more than %d s of processor time", b.Seconds)
	default:
		why = fmt.Sprintf("the program was ended by the system (%s) after %.1f s of processor time", status.Signal(), used.Seconds())
	}
	if stderr != "" {
		why += "\non standard error: " + stderr
	}
	return why
}

// command returns a command that starts this program again in its own namespaces. Its user there has no rights, except
// the right to set up the sandbox before the interpreter starts.
func (b pythonBox) command() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	settings, _ := json.Marshal(b) // texts and whole numbers always marshal
	cmd := exec.Command(self)
	cmd.Env = []string{pythonEnv + "=" + string(settings), "GOMAXPROCS=1", "OMP_NUM_THREADS=1"}
	if path, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+path)
	}
	cmd.Dir = "/"
	const user = 1000
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: user, HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
		Pdeathsig:   syscall.SIGKILL,
		Setsid:      true,
	}
	return cmd, nil
}

// boundedOutput stores the first bytes that a process writes, and kills the process if it writes more.
type boundedOutput struct {
	text bytes.Buffer
	mu   sync.Mutex
	cmd  *exec.Cmd
	max  int
	full bool
}

func (p *boundedOutput) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := min(len(text), p.max-p.text.Len())
	p.text.Write(text[:keep])
	if keep < len(text) && !p.full {
		p.full = true
		_ = p.cmd.Process.Kill()
	}
	return len(text), nil
}

// Serve runs a program of the Python tool if the process was started for one, and does not return. Otherwise it returns
// at once. Programs call trainer.ServeChild, which calls it.
func Serve() {
	if settings := os.Getenv(pythonEnv); settings != "" {
		fmt.Fprintln(os.Stderr, becomePython(settings))
		os.Exit(boxFailed)
	}
}

// becomePython sets up the sandbox around this process and starts the interpreter in its place. It returns only if that
// fails.
func becomePython(settings string) error {
	var b pythonBox
	if err := json.Unmarshal([]byte(settings), &b); err != nil {
		return err
	}
	runtime.LockOSThread() // the following changes apply to this thread, which executes the interpreter
	if err := b.mountFiles(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("sandbox")); err != nil {
		return fmt.Errorf("the name of the sandbox: %w", err)
	}
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing files: %w", err)
	}
	argv := []string{b.Executable, "-s", "-B", "-c", pythonStart, strconv.FormatInt(b.Memory, 10)}
	// A constant hash seed gives sets the same order in every run.
	env := []string{"PATH=/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8", "PYTHONUTF8=1", "PYTHONIOENCODING=utf-8:backslashreplace",
		"PYTHONHASHSEED=0", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1"}
	filter := seccompFilter()
	if err := b.limit(); err != nil {
		return err
	}
	if err := dropRights(filter); err != nil {
		return err
	}
	return fmt.Errorf("starting %s: %w", b.Executable, syscall.Exec(b.Executable, argv, env))
}

// mountFiles creates a file system with the sandbox's files and an empty /tmp, and moves the process into it.
func (b pythonBox) mountFiles() error {
	const base, old = "/tmp", "/old"
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := mountMemory(base, 1<<20); err != nil {
		return err
	}
	if err := os.Mkdir(base+old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(base, base+old); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := os.MkdirAll("/tmp", 0o700); err != nil {
		return err
	}
	if err := mountMemory("/tmp", b.Files); err != nil { // before the interpreter's files, which may be below /tmp
		return err
	}
	for _, s := range b.Mounted {
		if err := bindMount(old+s.Real, s.At); err != nil {
			return err
		}
		readOnly := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		if err := unix.MountSetattr(-1, s.At, unix.AT_RECURSIVE, readOnly); err != nil {
			return fmt.Errorf("making %s read-only: %w", s.At, err)
		}
	}
	for _, device := range []string{"/dev/null", "/dev/urandom"} {
		if err := bindMount(old+device, device); err != nil {
			return err
		}
	}
	if err := unix.Unmount(old, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	if err := os.Remove(old); err != nil {
		return err
	}
	if err := unix.MountSetattr(-1, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("making the root read-only: %w", err)
	}
	return os.Chdir("/tmp")
}

// mountMemory mounts an empty file system of at most size bytes.
func mountMemory(at string, size int64) error {
	const files = 10_000
	err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,nr_inodes=%d,mode=0700", size, files))
	if err != nil {
		return fmt.Errorf("mounting a file system in memory at %s: %w", at, err)
	}
	return nil
}

// bindMount makes the file or folder from visible at another path, which it creates.
func bindMount(from, at string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(at, 0o755)
	} else if err = os.MkdirAll(at[:strings.LastIndexByte(at, '/')+1], 0o755); err == nil {
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("showing %s: %w", at, err)
	}
	return nil
}

// limit sets the limits of the program's resources except memory. It cannot be undone. The interpreter limits its own
// memory, because this process may already use more and could then no longer allocate the memory to start the
// interpreter.
func (b pythonBox) limit() error {
	for _, l := range []struct {
		resource int
		value    uint64
	}{
		{unix.RLIMIT_CPU, b.Seconds},
		{unix.RLIMIT_FSIZE, uint64(b.Files)},
		{unix.RLIMIT_NOFILE, 64},
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_MEMLOCK, 0},
	} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("setrlimit %d to %d: %w", l.resource, l.value, err)
		}
	}
	return nil
}
