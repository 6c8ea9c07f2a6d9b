package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// followerEnv marks a follower's process. Its value is the lease within which the follower must send a heartbeat.
const followerEnv = "MGRPO_FOLLOWER"

// Descriptors of a follower's pipes.
const (
	ordersFD  = 3
	repliesFD = 4
)

// process is a follower's process that this one has started: orders are written to it, and replies are read from it.
type process struct {
	cmd     *exec.Cmd
	orders  *os.File
	replies *os.File
	output  *texts.Tail // the end of its standard output and error
}

// start starts this program again as a follower. The caller's thread must live as long as the process.
func (p *process) start(agent string, rank int, device string, environ []string) error {
	theirOrders, orders, err := os.Pipe()
	if err != nil {
		return err
	}
	replies, theirReplies, err := os.Pipe()
	if err != nil {
		return errors.Join(err, theirOrders.Close(), orders.Close())
	}
	p.orders, p.replies, p.output = orders, replies, &texts.Tail{Max: 4 << 10}
	// Start the file that is running, even if another one has replaced it since: then both ends use the same protocol.
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Args = []string{"mgrpo", "follower", agent, fmt.Sprint("rank=", rank), "device=" + device}
	p.cmd.Env = environ
	p.cmd.ExtraFiles = []*os.File{theirOrders, theirReplies}
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.WaitDelay = time.Second
	// A process group of its own, so that a terminal's Ctrl-C reaches rank 0 only, which ends its followers in order.
	// The kernel kills the follower together with the worker's thread that started it: a stopped process does not
	// notice a closed pipe.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = p.cmd.Start()
	err = errors.Join(err, theirOrders.Close(), theirReplies.Close())
	if err != nil {
		p.closePipes()
	}
	return err
}

func (p *process) Write(b []byte) (int, error) { return p.orders.Write(b) }

func (p *process) Read(b []byte) (int, error) { return p.replies.Read(b) }

// kill kills the process. It may have ended already.
func (p *process) kill() { _ = p.cmd.Process.Kill() }

// lastOutput returns the end of its output as one line.
func (p *process) lastOutput() string { return strings.Join(strings.Fields(p.output.String()), " ") }

func (p *process) closePipes() { _ = errors.Join(p.orders.Close(), p.replies.Close()) }

// GPULost is the exit status of a follower that lost its GPU to a CUDA failure.
const GPULost = 75

// exitReport describes how a follower's process ended.
type exitReport struct {
	How    string `json:"how"`
	Output string `json:"output,omitempty"` // the end of its output
	GPU    bool   `json:"gpu,omitempty"`    // a CUDA failure took its GPU
}

// finish kills the process, if it still runs, and waits until it is gone.
func (p *process) finish() (e exitReport) {
	p.kill()
	err := p.cmd.Wait()
	p.closePipes()
	e = exitReport{How: "has left", Output: p.lastOutput()}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return e
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		e.How = fmt.Sprintf("was killed (signal %d)", s.Signal())
		if s.Signal() == syscall.SIGKILL {
			e.How += ", as the kernel does when memory runs out"
		}
		return e
	}
	e.How, e.GPU = fmt.Sprintf("ended with %v", exit), exit.ExitCode() == GPULost
	return e
}
