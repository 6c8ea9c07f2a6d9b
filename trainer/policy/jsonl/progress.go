package jsonl

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress tells a person now and then how far a long run over lines is. A nil *Progress tells nothing.
type Progress struct {
	mu            sync.Mutex
	lines, tokens int
	began         time.Time
	stop          chan struct{}
	done          sync.WaitGroup
}

// StartProgress writes a line to w once `after` has gone by, and again every five times that long, until
// Stop. what is done with tokens is the verb: "sampled", "scored".
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

// Stop ends the reports.
func (p *Progress) Stop() {
	if p != nil {
		close(p.stop)
		p.done.Wait()
	}
}
