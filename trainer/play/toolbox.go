package play

import (
	"errors"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// Limits of a tool without an entry of its own in the configuration.
const (
	DefaultToolTime   = 10 * time.Second
	DefaultToolOutput = 4096 // bytes
)

// Toolbox is the tools of one agent, with what has to be closed after use. The zero Toolbox is empty.
type Toolbox struct {
	byName map[string]tool.Tool
	all    []tool.Tool // in the order added
	meter  tool.Meter
	close  []func() error
}

// Add puts a tool in, within limits.
func (b *Toolbox) Add(t tool.Tool, l tool.Limits) {
	t = b.meter.Counted(tool.Limited(t, l))
	if b.byName == nil {
		b.byName = map[string]tool.Tool{}
	}
	b.byName[t.Name()] = t
	b.all = append(b.all, t)
}

// Lost is told that a tool's server was lost and why.
func (b *Toolbox) Lost(why string) { b.meter.Lost(why) }

// OnClose has f called by Close.
func (b *Toolbox) OnClose(f func() error) { b.close = append(b.close, f) }

// Close ends what the tools hold: indexes, interpreters, servers.
func (b *Toolbox) Close() error {
	var errs []error
	for _, c := range b.close {
		errs = append(errs, c())
	}
	b.close = nil
	return errors.Join(errs...)
}
