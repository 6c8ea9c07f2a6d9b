package standalone

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress prints at intervals how many lines and tokens are done. A nil *Progress prints nothing.
type Progress struct {
	mu            sync.Mutex
	lines, tokens int
	began         time.Time
	stop          chan struct{}
	once          sync.Once // closes stop
	done          sync.WaitGroup
}

// StartProgress prints a line to w after `after`, then every 5 × `after` until Stop. `what` is the verb for the tokens:
// "sampled" or "scored".
func StartProgress(w io.Writer, what string, after time.Duration) *Progress {
	p := &Progress{began: time.Now(), stop: make(chan struct{})}
	p.done.Go(func() {
		wait := time.NewTimer(after)
		defer wait.Stop()
		for {
			select {
			case <-wait.C:
				p.tell(w, what)
				wait.Reset(5 * after)
			case <-p.stop:
				return
			}
		}
	})
	return p
}

func (p *Progress) tell(w io.Writer, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := time.Since(p.began).Seconds()
	fmt.Fprintf(w, "%d lines, %d tokens %s, %.0f tokens/s\n", p.lines, p.tokens, what, float64(p.tokens)/s)
}

func (p *Progress) add(lines, tokens int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines += lines
	p.tokens += tokens
}

// Stop ends the reports. It may be called more than once.
func (p *Progress) Stop() {
	if p != nil {
		p.once.Do(func() { close(p.stop) })
		p.done.Wait()
	}
}
