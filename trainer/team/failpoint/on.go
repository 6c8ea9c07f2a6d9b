//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Here is a moment named by its parts, which dots join.
func Here(parts ...string) { armed().pass(strings.Join(parts, ".")) }

// Around is the moment before what follows, PARTS.before; what it returns is the moment after, PARTS.after.
func Around(parts ...string) (after func()) {
	name := strings.Join(parts, ".")
	Here(name, "before")
	return func() { Here(name, "after") }
}

// points is what the environment asks of this process.
type points struct {
	mu   sync.Mutex
	log  *os.File // nil: no log is kept
	name string   // where to die; "": nowhere
	left int      // passages of it until then
	stop bool     // sleep there instead
}

var armed = sync.OnceValue(func() *points {
	p := &points{}
	if path := os.Getenv(LogEnv); path != "" {
		var err error
		if p.log, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644); err != nil {
			panic(fmt.Sprintf("failpoint: %s: %v", LogEnv, err))
		}
	}
	if text := os.Getenv(KillEnv); text != "" {
		name, count, _ := strings.Cut(text, ":")
		count, stop := strings.CutSuffix(count, ":stop")
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 {
			panic(fmt.Sprintf("failpoint: %s is %q, and neither NAME:N nor NAME:N:stop", KillEnv, text))
		}
		p.name, p.left, p.stop = name, n, stop
	}
	return p
})

// pass is one passage. The log has it before the process dies of it.
func (p *points) pass(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log != nil {
		if _, err := fmt.Fprintf(p.log, "%d %s\n", time.Now().UnixNano(), name); err != nil {
			panic(fmt.Sprintf("failpoint: %v", err))
		}
	}
	if name != p.name {
		return
	}
	p.left--
	switch {
	case p.left != 0:
	case p.stop:
		syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
		time.Sleep(50 * time.Millisecond) // until the signal has stopped all threads
	default:
		syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // until the signal is delivered
	}
}
