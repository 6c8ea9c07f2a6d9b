package tool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// sandboxEnv marks an interpreter's process; its value is the memory limit in bytes.
const sandboxEnv = "MGRPO_SANDBOX_MEMORY"

// sandboxReady is the first line of an interpreter: a program that does not call ServeSandbox prints another.
const sandboxReady = "mgrpo sandbox ready"

// maxAnswer bounds one answer line: the output's limit is kept by the interpreter, this guards against
// one that went wrong.
const maxAnswer = 16 << 20

// sandbox is one interpreter's process, used by one call at a time.
type sandbox struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr *head
	end    sync.Once
}

// startSandbox runs this program again as an interpreter. The environment does not go along: it may hold keys.
func startSandbox(ctx context.Context, memory int64) (*sandbox, error) {
	if os.Getenv(sandboxEnv) != "" {
		return nil, errors.New("an interpreter must not start another: call tool.ServeSandbox first thing in main")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &sandbox{cmd: exec.Command(self), stderr: &head{}}
	w.cmd.Env = []string{sandboxEnv + "=" + strconv.FormatInt(memory, 10), "GOMAXPROCS=2", "OMP_NUM_THREADS=1"}
	if path, ok := os.LookupEnv("LD_LIBRARY_PATH"); ok {
		w.cmd.Env = append(w.cmd.Env, "LD_LIBRARY_PATH="+path)
	}
	w.cmd.Dir = "/"
	w.cmd.Stderr = w.stderr
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.stdout = bufio.NewReader(stdout)
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := w.exchange(ctx, nil)
	if err == nil && string(bytes.TrimSpace(line)) != sandboxReady {
		err = fmt.Errorf("%s does not call tool.ServeSandbox", self)
	}
	if err != nil {
		w.kill()
		return nil, err
	}
	return w, nil
}

// execute runs one program. An error means that the process is of no further use.
func (w *sandbox) execute(ctx context.Context, r sandboxRequest) (sandboxAnswer, error) {
	request, err := r.line()
	if err != nil {
		return sandboxAnswer{}, err
	}
	line, err := w.exchange(ctx, request)
	if err != nil {
		return sandboxAnswer{}, err
	}
	var a sandboxAnswer
	if err := json.Unmarshal(line, &a); err != nil {
		return sandboxAnswer{}, fmt.Errorf("the interpreter answered with something else: %w", err)
	}
	return a, nil
}

// exchange writes a request and reads one line. It kills the process when ctx ends: a step of Starlark
// cannot be interrupted in any other way.
func (w *sandbox) exchange(ctx context.Context, request []byte) ([]byte, error) {
	stop := context.AfterFunc(ctx, w.kill)
	_, err := w.stdin.Write(request)
	var line []byte
	if err == nil {
		line, err = readLine(w.stdout, maxAnswer)
	}
	if !stop() { // the killer has started: it owns the end of the process
		w.kill()
		return nil, context.Cause(ctx)
	}
	if err == nil {
		return line, nil
	}
	w.kill() // waits for the process, after which stderr is complete
	return nil, w.reason(err)
}

// reason says why the process died, in the model's terms.
func (w *sandbox) reason(err error) error {
	said := w.stderr.String()
	switch {
	case strings.Contains(said, "stack overflow") || strings.Contains(said, "stack exceeds"):
		return errors.New("the program recurses too deeply")
	// A thread that the runtime cannot start for want of a stack is the same limit.
	case strings.Contains(said, "out of memory") || strings.Contains(said, "cannot allocate memory") || strings.Contains(said, "pthread_create failed"):
		return errors.New("the program needs more memory than it may have")
	}
	return fmt.Errorf("the program ended its interpreter (%w): most likely it needs more memory than it may have", err)
}

// kill ends the process and waits for it. It may be called more than once and returns when it is over.
func (w *sandbox) kill() {
	w.end.Do(func() {
		_ = w.stdin.Close()
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait() // how a killed process ended is known
	})
}

// readLine reads up to a newline, at most max bytes.
func readLine(r *bufio.Reader, max int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(line) > max {
			return nil, fmt.Errorf("an answer of more than %d bytes", max)
		}
	}
}

// head keeps the first bytes of what a process says on standard error, where Go names its fatal error.
type head struct {
	mu sync.Mutex
	b  []byte
}

func (t *head) Write(p []byte) (int, error) {
	const keep = 8 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[:min(len(p), keep-len(t.b))]...)
	return len(p), nil
}

func (t *head) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
