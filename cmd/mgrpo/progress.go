package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progressAfter is the longest time without output while lines are processed.
const progressAfter = 2 * time.Second

// progress prints at intervals how many lines and tokens are done.
type progress struct {
	mu            sync.Mutex
	lines, tokens int
	began         time.Time
	ended         chan struct{}
	done          sync.WaitGroup
}

// startProgress prints a line to w after progressAfter, then every 5 × progressAfter until stop. verb describes the
// work on the tokens: "sampled" or "scored".
func startProgress(w io.Writer, verb string) *progress {
	p := &progress{began: time.Now(), ended: make(chan struct{})}
	p.done.Go(func() {
		wait := time.NewTimer(progressAfter)
		defer wait.Stop()
		for {
			select {
			case <-wait.C:
				p.print(w, verb)
				wait.Reset(5 * progressAfter)
			case <-p.ended:
				return
			}
		}
	})
	return p
}

func (p *progress) print(w io.Writer, verb string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := time.Since(p.began).Seconds()
	fmt.Fprintf(w, "%d lines, %d tokens %s, %.0f tokens/s\n", p.lines, p.tokens, verb, float64(p.tokens)/s)
}

// add counts lines and tokens that are done.
func (p *progress) add(lines, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines += lines
	p.tokens += tokens
}

// stop ends the reports.
func (p *progress) stop() {
	close(p.ended)
	p.done.Wait()
}
