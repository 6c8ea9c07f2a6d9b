package main

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
)

func train(ctx context.Context, cfg *config.Config, opt trainer.Options) error {
	opt.Observer = &plain{start: time.Now()}
	return trainer.Train(ctx, cfg, opt)
}

type plain struct {
	mu    sync.Mutex
	start time.Time
	last  time.Time
}

func (p *plain) Progress(agent, phase string, done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) < 2*time.Second {
		return
	}
	p.last = time.Now()
	fmt.Printf("%6.1fs %s %s %d/%d\n", time.Since(p.start).Seconds(), agent, phase, done, total)
}

func (p *plain) Note(agent, text string) { fmt.Println(agent, text) }

func (p *plain) Report(r metrics.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []string
	for k := range r.Values {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, " %s=%.4g", k, r.Values[k])
	}
	fmt.Printf("%6.1fs %s %d %s:%s\n", time.Since(p.start).Seconds(), r.Kind, r.Step, r.Agent, b.String())
}
