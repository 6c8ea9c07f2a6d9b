// Package sandbox runs programs that a model writes, in Starlark or Python, in processes without rights.
package sandbox

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

// sandboxEnv marks an interpreter's process. Its value is the memory limit in bytes.
const sandboxEnv = "MGRPO_SANDBOX_MEMORY"

// sandboxReady is the first line that an interpreter prints. Another first line means that the program does not call
// Serve.
const sandboxReady = "mgrpo sandbox ready"

// maxAnswer is the largest number of bytes in an answer line. The interpreter enforces the limit on output; maxAnswer
// guards against a broken interpreter.
const maxAnswer = 16 << 20

// sandbox is one interpreter's process, used by one call at a time.
type sandbox struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr *head
	end    sync.Once
}

// startSandbox starts this program again as an interpreter. The interpreter gets no environment variables, because they
// may contain keys.
func startSandbox(ctx context.Context, memory int64) (*sandbox, error) {
	if os.Getenv(sandboxEnv) != "" {
		return nil, errors.New("an interpreter must not start another interpreter: call trainer.ServeChild first in main")
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
		err = fmt.Errorf("%s does not call trainer.ServeChild", self)
	}
	if err != nil {
		w.kill()
		return nil, err
	}
	return w, nil
}

// execute runs one program. After an error the process cannot be used again.
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
		return sandboxAnswer{}, fmt.Errorf("the interpreter's answer is not the expected JSON: %w", err)
	}
	return a, nil
}

// exchange writes a request and reads one line. It kills the process when ctx ends, because a Starlark step cannot be
// interrupted in any other way.
func (w *sandbox) exchange(ctx context.Context, request []byte) ([]byte, error) {
	stop := context.AfterFunc(ctx, w.kill)
	_, err := w.stdin.Write(request)
	var line []byte
	if err == nil {
		line, err = readLine(w.stdout, maxAnswer)
	}
	if !stop() { // ctx has ended, and its callback is killing the process
		w.kill()
		return nil, context.Cause(ctx)
	}
	if err == nil {
		return line, nil
	}
	w.kill() // waits for the process, so stderr is complete afterwards
	return nil, w.reason(err)
}

// reason returns the reason why the process died, as a text for the model.
func (w *sandbox) reason(err error) error {
	stderr := w.stderr.String()
	switch {
	case strings.Contains(stderr, "stack overflow") || strings.Contains(stderr, "stack exceeds"):
		return errors.New("the program recurses too deeply")
	// The Go runtime fails to start a thread when the memory limit leaves no room for its stack.
	case strings.Contains(stderr, "out of memory") || strings.Contains(stderr, "cannot allocate memory") || strings.Contains(stderr, "pthread_create failed"):
		return errors.New("the program needs more memory than it may have")
	}
	return fmt.Errorf("the program ended its interpreter (%w): most likely it needs more memory than it may have", err)
}

// kill kills the process and waits for its end. It may be called more than once.
func (w *sandbox) kill() {
	w.end.Do(func() {
		_ = w.stdin.Close()
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait() // the exit status of a killed process carries no information
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

// head stores the first bytes that a process writes to standard error. Go prints a fatal error there first.
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
