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

// Here marks a moment. Its name is the parts, joined by dots.
func Here(parts ...string) { processSettings().pass(strings.Join(parts, ".")) }

// Around marks two moments: PARTS.before when it is called, and PARTS.after when the function that it returns is called.
func Around(parts ...string) (after func()) {
	name := strings.Join(parts, ".")
	Here(name, "before")
	return func() { Here(name, "after") }
}

// settings holds the settings that the environment has for this process.
type settings struct {
	mu        sync.Mutex
	log       *os.File // nil: no log is written
	name      string   // moment at which the process ends; "": none
	remaining int      // number of passages of this moment that remain
	stop      bool     // suspend the process instead of ending it
}

var processSettings = sync.OnceValue(func() *settings {
	p := &settings{}
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
			panic(fmt.Sprintf("failpoint: %s is %q: must be NAME:N or NAME:N:stop", KillEnv, text))
		}
		p.name, p.remaining, p.stop = name, n, stop
	}
	return p
})

// pass handles one passage. It is logged before the process ends.
func (p *settings) pass(name string) {
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
	p.remaining--
	switch {
	case p.remaining != 0:
	case p.stop:
		syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
		time.Sleep(50 * time.Millisecond) // until the signal has stopped all threads
	default:
		syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // until the signal is delivered
	}
}
