package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// ProgramOptions are the options of Programs.
type ProgramOptions struct {
	Command   []string // program and arguments, without a shell
	Dir       string
	Timeout   time.Duration
	Parallel  int      // programs at once; 0: one
	BaseURL   string   // address of the team's main agent, ending with /v1
	Secret    Secret   // signs the programs' keys
	HiddenEnv []string // environment variables of this process that programs do not get
}

// Programs starts a command for every job.
type Programs struct {
	ProgramOptions
	slots chan struct{}
}

// maxStderr is the largest number of bytes that are kept of a program's stderr.
const maxStderr = 8 << 10

// NewPrograms returns an error if the program does not exist.
func NewPrograms(opt ProgramOptions) (*Programs, error) {
	if err := checkCommand(opt.Command, opt.Dir); err != nil {
		return nil, err
	}
	return &Programs{opt, make(chan struct{}, max(opt.Parallel, 1))}, nil
}

// checkCommand returns an error if the program does not exist.
func checkCommand(command []string, dir string) error {
	if len(command) == 0 || command[0] == "" {
		return errors.New("the command is empty")
	}
	look := exec.Command(command[0], command[1:]...)
	look.Dir = dir
	return look.Err
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
		out.Failed = fmt.Errorf("program %s: %w: %s", p.Command[0], err, texts.LastLine(stderr))
	}
	return out, nil
}

// errNotStarted is the error of a command that could not be started.
var errNotStarted = errors.New("it could not be started")

// maxInEnvironment is the largest number of bytes of a query in the environment. Linux allows 128 KiB for a variable.
const maxInEnvironment = 120 << 10

// queryVariable returns the environment variable with a query, or with the name of a file that holds a longer one. remove removes the file.
func queryVariable(query []byte) (variable string, remove func(), err error) {
	if len(query) <= maxInEnvironment {
		return "MGRPO_QUERY=" + string(query), func() {}, nil
	}
	f, err := os.CreateTemp("", "mgrpo-query-*.json")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.Remove(f.Name()) }
	_, err = f.Write(query)
	if err = errors.Join(err, f.Close()); err != nil {
		remove()
		return "", nil, err
	}
	return "MGRPO_QUERY_FILE=" + f.Name(), remove, nil
}

// start starts the command, waits for its end and returns its last line. It also ends the command's child processes.
func (p *Programs) start(ctx context.Context, query []byte, rollout int, key string) (line []byte, stderrEnd string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Timeout, fmt.Errorf("it took longer than task.program.timeout, %v", p.Timeout.Round(time.Second)))
	defer cancel()
	variable, remove, err := queryVariable(query)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", errNotStarted, err)
	}
	defer remove()
	stdout, stderr := texts.Tail{Max: maxResult + 1}, texts.Tail{Max: maxStderr}
	c := exec.CommandContext(ctx, p.Command[0], p.Command[1:]...)
	c.Dir, c.Stdout, c.Stderr = p.Dir, &stdout, &stderr
	c.Env = append(secret.Environ(p.HiddenEnv), "OPENAI_BASE_URL="+p.BaseURL, "OPENAI_API_KEY="+key, variable, "MGRPO_ROLLOUT="+strconv.Itoa(rollout))
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
	case c.Process == nil:
		err = fmt.Errorf("%w: %w", errNotStarted, err)
	case errors.Is(err, exec.ErrWaitDelay): // a child process kept its output open
		err = nil
	}
	lines := bytes.Split(bytes.TrimSpace(stdout.Bytes()), []byte("\n"))
	return lines[len(lines)-1], stderr.String(), err
}
