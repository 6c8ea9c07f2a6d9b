package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/engine/cgroup"
)

// CodeConfig limits the programs of a code tool. Zero values mean the defaults in parentheses.
type CodeConfig struct {
	Steps   uint64 // Starlark steps of a program (1,000,000)
	Memory  int64  // bytes that a program may use in addition to an empty interpreter (256 MiB)
	Output  int    // bytes a program may print (64 KiB)
	Workers int    // programs that run at once (one per core)
}

func (c CodeConfig) withDefaults() CodeConfig {
	if c.Steps == 0 {
		c.Steps = 1_000_000
	}
	if c.Memory == 0 {
		c.Memory = 256 << 20
	}
	if c.Output == 0 {
		c.Output = 64 << 10
	}
	if c.Workers == 0 {
		c.Workers = cgroup.Count().N
	}
	return c
}

// Code runs Starlark, a small dialect of Python, in separate processes. Starlark has no files, no network, no clock and
// cannot load modules. The interpreter counts steps, but a single step can be arbitrarily large ("a" * 10**9, str of
// deeply nested lists). So the operating system limits memory and time: the process has a limit on its data and is
// killed at the time-out.
//
// Each process is a new start of the running program, which must call trainer.ServeChild first in main.
type Code struct {
	tool.Tool
	cfg CodeConfig

	mu      sync.Mutex
	closed  bool
	workers chan *sandbox // cfg.Workers slots; a nil slot has no process yet
}

// NewCode returns the tool. The first call starts the first process.
func NewCode(cfg CodeConfig) *Code {
	c := &Code{cfg: cfg.withDefaults()}
	c.workers = make(chan *sandbox, c.cfg.Workers)
	for range c.cfg.Workers {
		c.workers <- nil
	}
	c.Tool = tool.Func("code", "Runs a program in Starlark, which looks like Python and is not: no import (math and json are there already), no "+
		"class, try, with, yield or f-string, no ** (write pow(x, y)), no files, no network. Write \"%s is %d\" % (a, b) for an f-string. Answers "+
		"with what it prints and the value of its last line.",
		"program", "The program. Example: sum([x * x for x in range(10)])", c.run)
	return c
}

// Close waits for running calls and ends the interpreters. Later calls fail.
func (c *Code) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	for range c.cfg.Workers {
		if w := <-c.workers; w != nil {
			w.kill()
		}
	}
	close(c.workers)
	return nil
}

func (c *Code) run(ctx context.Context, program string) (string, error) {
	var w *sandbox
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case slot, open := <-c.workers:
		if !open {
			return "", errors.New("the code tool is closed")
		}
		w = slot
	}
	// Every path returns the slot; only a process that answered cleanly is reused.
	var healthy *sandbox
	defer func() { c.workers <- healthy }()
	if w == nil {
		var err error
		if w, err = startSandbox(ctx, c.cfg.Memory); err != nil {
			return "", tool.Failed(fmt.Errorf("starting the interpreter: %w", err))
		}
	}
	answer, err := w.execute(ctx, sandboxRequest{Program: program, Steps: c.cfg.Steps, Output: c.cfg.Output})
	if err != nil {
		w.kill()
		return "", err
	}
	if answer.Retire {
		w.kill()
	} else {
		healthy = w
	}
	return answer.text()
}

// sandboxRequest and sandboxAnswer are each one JSON line on the interpreter's standard input and output.
type sandboxRequest struct {
	Program string
	Steps   uint64
	Output  int
}

type sandboxAnswer struct {
	Output string
	Error  string
	Retire bool // the process should be replaced because it holds too much memory
}

func (a sandboxAnswer) text() (string, error) {
	out := strings.TrimRight(a.Output, "\n")
	switch {
	case a.Error != "" && out != "":
		return "", fmt.Errorf("%s\nprinted before: %s", a.Error, out)
	case a.Error != "":
		return "", errors.New(a.Error)
	case out == "":
		return "(no output: print something or end with an expression)", nil
	}
	return out, nil
}

func (r sandboxRequest) line() ([]byte, error) {
	b, err := json.Marshal(r)
	return append(b, '\n'), err
}
