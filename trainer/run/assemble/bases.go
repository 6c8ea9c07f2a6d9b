package assemble

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// Process holds the objects that the agents of a process share: its cores, and the models that they adapt. Agents that
// adapt the same model on the same device hold its weights once, and share the device's thread.
type Process struct {
	Agents   []string
	Machines map[string]*launch.Machines // further machines with devices for agents, by agent

	mu    sync.Mutex
	bases map[string]*base
}

// base is a model on its own device, and the engine that samples from it for all agents of the model.
type base struct {
	model *model.Model
	users int

	mu     sync.Mutex
	engine *local.Engine // nil until the first agent samples
}

// take returns the base of a key, and a function that gives it back. The first agent that takes it loads the model with
// load, on a new device. A base without a key is never shared.
func (p *Process) take(key string, load func() (*model.Model, error)) (*base, func(context.Context) error, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	shared := p.bases[key]
	if shared == nil || key == "" {
		m, err := load()
		if err != nil {
			return nil, nil, err
		}
		shared = &base{model: m}
		if p.bases == nil {
			p.bases = map[string]*base{}
		}
		p.bases[key] = shared
	}
	shared.users++
	return shared, func(ctx context.Context) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if shared.users--; shared.users > 0 {
			return nil
		}
		if p.bases[key] == shared {
			delete(p.bases, key)
		}
		var err error
		if shared.engine != nil {
			err = shared.engine.Close(ctx)
		}
		return errors.Join(err, shared.model.Close(ctx), shared.model.Device.Close())
	}, nil
}

// sampler returns the base's engine, and opens it at the first call.
func (b *base) sampler(ctx context.Context, opt local.Options) (*local.Engine, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.engine != nil {
		return b.engine, nil
	}
	var err error
	b.engine, err = local.Open(ctx, b.model, opt)
	return b.engine, err
}

// baseKey identifies the weights in memory that an agent adapts: it is equal for agents that can share them.
func baseKey(cfg *config.Config, a *config.Agent) string {
	if !a.Adapts() {
		return "" // its weights change
	}
	where := fmt.Sprint(a.Device, a.DType, a.Engine.DType, a.Engine.CacheDType)
	if a.Model.Shape == nil {
		return fmt.Sprint(where, cfg.Resolve(a.Model.Path), a.Model.Path)
	}
	return fmt.Sprint(where, *a.Model.Shape, shapeSeed(cfg, a))
}

// sharing returns the agents of this process that share an agent's weights, including itself.
func (o AgentOptions) sharing(a *config.Agent) (all []*config.Agent) {
	for _, name := range o.Process.Agents {
		other := o.Config.Agent(name)
		if other == a || baseKey(o.Config, a) != "" && baseKey(o.Config, other) == baseKey(o.Config, a) {
			all = append(all, other)
		}
	}
	if len(all) == 0 {
		return []*config.Agent{a}
	}
	return all
}

// positions returns the largest number of tokens in a conversation of any of the agents.
func positions(agents []*config.Agent) (most int) {
	for _, a := range agents {
		most = max(most, a.ContextTokens(math.MaxInt))
	}
	return most
}
