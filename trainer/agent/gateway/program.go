package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/tail"
)

// Programs starts a command for every job.
type Programs struct {
	Command  []string // program and arguments, without a shell
	Dir      string
	Timeout  time.Duration
	Parallel int      // programs at once
	BaseURL  string   // address of the team's main agent, ending with /v1
	Secret   Secret   // signs the programs' keys
	Hidden   []string // environment variables of this process that programs do not get

	slots chan struct{}
}

// maxStderr is the largest number of bytes that are kept of a program's stderr.
const maxStderr = 8 << 10

// NewPrograms returns an error if the program does not exist.
func NewPrograms(p Programs) (*Programs, error) {
	look := exec.Command(p.Command[0], p.Command[1:]...)
	look.Dir = p.Dir
	if look.Err != nil {
		return nil, look.Err
	}
	p.slots = make(chan struct{}, max(p.Parallel, 1))
	return &p, nil
}

// Play runs the command once. If the program crashes, times out or prints no result, the job has failed, and the end of
// its stderr is the reason.
func (p *Programs) Play(ctx context.Context, j Job) (JobOutcome, error) {
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return JobOutcome{}, context.Cause(ctx)
	}
	t := j.Ticket
	t.Attempt, t.Deadline = 1, time.Now().Add(p.Timeout).Unix()+1
	out := JobOutcome{Ticket: t}
	line, stderr, err := p.start(ctx, j.query(), t.Rollout, p.Secret.Key(t))
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	if err == nil {
		out.Result, err = parseResult(line)
	}
	if out.Stderr = stderr; err != nil {
		out.Failed = fmt.Errorf("program %s: %w: %s", p.Command[0], err, tail.LastLine(stderr))
	}
	return out, nil
}

// start starts the command, waits for its end and returns its last line. It also ends the command's child processes.
func (p *Programs) start(ctx context.Context, query []byte, rollout int, key string) (line []byte, stderrEnd string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Timeout, fmt.Errorf("it took longer than task.program.timeout, %v", p.Timeout.Round(time.Second)))
	defer cancel()
	stdout, stderr := tail.Writer{Max: maxResult + 1}, tail.Writer{Max: maxStderr}
	c := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	c.Dir, c.Stdout, c.Stderr = p.Dir, &stdout, &stderr
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(p.Hidden, name)
	})
	c.Env = append(environment, "OPENAI_BASE_URL="+p.BaseURL, "OPENAI_API_KEY="+key, "MGRPO_QUERY="+string(query), "MGRPO_ROLLOUT="+strconv.Itoa(rollout))
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	err = c.Run()
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // end the processes that it left running
	}
	switch {
	case ctx.Err() != nil && err != nil:
		err = context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay): // a child process kept its output open
		err = nil
	}
	lines := bytes.Split(bytes.TrimSpace(stdout.Bytes()), []byte("\n"))
	return lines[len(lines)-1], stderr.String(), err
}
