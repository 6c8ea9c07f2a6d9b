package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// followerEnv marks the process of a follower. Its value is the lease, within which it gives signs of life.
const followerEnv = "MGRPO_FOLLOWER"

// Descriptors of a follower's pipes.
const (
	ordersFD  = 3
	repliesFD = 4
)

// process is a follower as rank 0 sees it.
type process struct {
	agent, device string
	rank          int
	cmd           *exec.Cmd
	writing       sync.Mutex
	orders        *os.File // to it
	replies       *os.File // from it
	said          *tail    // what it wrote on its standard output and error
}

// start starts this program again as a follower. The caller's thread must live as long as the process.
func (p *process) start(environ []string) error {
	theirOrders, orders, err := os.Pipe()
	if err != nil {
		return err
	}
	replies, theirReplies, err := os.Pipe()
	if err != nil {
		return errors.Join(err, theirOrders.Close(), orders.Close())
	}
	p.orders, p.replies, p.said = orders, replies, &tail{}
	// The file that is running, also if another was put into its place since: both ends then speak the same protocol.
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Args = []string{"mgrpo", "follower", p.agent, fmt.Sprint("rank=", p.rank), "device=" + p.device}
	p.cmd.Env = environ
	p.cmd.ExtraFiles = []*os.File{theirOrders, theirReplies}
	p.cmd.Stdout, p.cmd.Stderr = p.said, p.said
	p.cmd.WaitDelay = time.Second
	// A process group of its own, so that a terminal's Ctrl-C reaches rank 0 alone, which ends its followers in good order. The kernel
	// kills it with the worker's thread that started it: a closed pipe is not seen by a process that is stopped.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = p.cmd.Start()
	err = errors.Join(err, theirOrders.Close(), theirReplies.Close())
	if err != nil {
		p.closePipes()
	}
	return err
}

// send writes frames, one after another.
func (p *process) send(frames ...[]byte) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	for _, b := range frames {
		if _, err := p.orders.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) closePipes() { _ = errors.Join(p.orders.Close(), p.replies.Close()) }

// GPULost is the exit status of a follower from which a failure of CUDA has taken its GPU.
const GPULost = 75

// finish kills the process, if it is still there, and says how it ended, and whether its GPU was lost.
func (p *process) finish() (how string, gpu bool) {
	_ = p.cmd.Process.Kill()
	err := p.cmd.Wait()
	p.closePipes()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return "has left", false
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return fmt.Sprintf("was killed (%v)", s.Signal()), false
	}
	return fmt.Sprintf("ended with %v", exit), exit.ExitCode() == GPULost
}

func (p *process) name() string { return fmt.Sprintf("rank %d of %s on %s", p.rank, p.agent, p.device) }

// environment is what followers get of this process's.
func environment(without []string) []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(without, name)
	})
}

// tail keeps the last bytes that a process writes.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String is what was written last, as one line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(strings.Fields(string(t.text)), " ")
}
