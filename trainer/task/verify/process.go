package verify

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// process is a running program with line-based input and output.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr *texts.Tail
	exited chan struct{} // closed by reason

	// Guarded by the lock of the verifier.
	heard time.Time // time of the last answer
	hung  bool      // it is being killed because it hangs

	mu     sync.Mutex
	queue  [][]byte // lines to write
	filled *sync.Cond
	ended  bool
}

// grace is the time that a process has to end after its standard input is closed.
const grace = 2 * time.Second

// startProcess starts a program in its own process group. The kernel kills the program when the calling thread ends, so
// that it does not outlive this process. The goroutine keeps its thread until it calls reason.
func startProcess(command []string, dir string) (*process, error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...), stderr: &texts.Tail{Max: 2 << 10}, exited: make(chan struct{})}
	p.filled = sync.NewCond(&p.mu)
	p.cmd.Dir, p.cmd.Stderr = dir, p.stderr
	p.cmd.WaitDelay = grace // in case a child of the program keeps standard error open
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.stdout, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	if err := p.cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	go p.write()
	return p, nil
}

// send queues a line. It does not block while the program is busy.
func (p *process) send(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, line)
	p.filled.Signal()
}

// write writes queued lines to the program until the process has ended.
func (p *process) write() {
	for {
		p.mu.Lock()
		for len(p.queue) == 0 && !p.ended {
			p.filled.Wait()
		}
		lines := p.queue
		p.queue = nil
		ended := p.ended
		p.mu.Unlock()
		if ended {
			return
		}
		for _, line := range lines {
			if _, err := p.stdin.Write(line); err != nil {
				return // the program closed its input; the method lines will detect its end
			}
		}
	}
}

// lines calls f for every line of standard output until the output ends or f returns an error.
func (p *process) lines(max int, f func(line []byte) error) error {
	in := bufio.NewScanner(p.stdout)
	in.Buffer(nil, max)
	for in.Scan() {
		if err := f(in.Bytes()); err != nil {
			return err
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("it wrote a line of more than %d bytes", max)
	}
	return in.Err()
}

// end closes standard input, so that the program ends. It kills the process group after grace.
func (p *process) end() {
	_ = p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(grace):
		p.kill()
		_ = p.stdout.Close() // a child in another process group may keep it open
	}
}

func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// reason ends the process, waits for it, and returns the reason why it ended. failed is the error from lines.
func (p *process) reason(failed error) error {
	if failed != nil {
		p.kill()
	}
	_ = p.stdin.Close()
	late := time.AfterFunc(grace, p.kill)
	err := p.cmd.Wait()
	late.Stop()
	close(p.exited)
	runtime.UnlockOSThread()
	p.mu.Lock()
	p.ended = true
	p.filled.Signal()
	p.mu.Unlock()
	switch {
	case failed != nil:
		err = failed
	case err == nil:
		err = errors.New("it ended")
	}
	return fmt.Errorf("%w%s", err, p.errorOutput())
}

// errorOutput returns the last output on standard error, for the end of an error.
func (p *process) errorOutput() string {
	if text := strings.TrimSpace(p.stderr.String()); text != "" {
		return "; on standard error:\n" + text
	}
	return ""
}
