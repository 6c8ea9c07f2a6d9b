package play

import (
	"errors"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
)

// Toolbox owns the tools of one agent, counts their calls and closes them. The zero Toolbox is empty.
type Toolbox struct {
	tool.Meter
	byName map[string]tool.Tool
	all    []tool.Tool // in the order added
	close  []func() error
}

// Add adds a tool and applies limits to its calls.
func (b *Toolbox) Add(t tool.Tool, l tool.Limits) {
	t = b.Counted(tool.Limited(t, l))
	if b.byName == nil {
		b.byName = map[string]tool.Tool{}
	}
	b.byName[t.Name()] = t
	b.all = append(b.all, t)
}

// OnClose registers f to be called by Close.
func (b *Toolbox) OnClose(f func() error) { b.close = append(b.close, f) }

// Close releases indexes, interpreters and servers.
func (b *Toolbox) Close() error {
	var errs []error
	for _, c := range b.close {
		errs = append(errs, c())
	}
	b.close = nil
	return errors.Join(errs...)
}
