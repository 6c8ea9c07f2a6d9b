package assemble

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// trained returns the number of parameters that training changes in an agent's model of this architecture.
func trained(cfg *config.Config, a *config.Agent, base arch.Config) (int64, error) {
	if !a.Adapts() {
		return base.Parameters(), nil
	}
	_, layout, _, err := adapters(cfg, a, base)
	if err != nil {
		return 0, err
	}
	return layout.Numel, nil
}

// adapters returns an agent's initial adapters: new ones, or those of the configured folder. read is the same as in
// model.Adapt.
func adapters(cfg *config.Config, a *config.Agent, base arch.Config) (c lora.PEFT, l *lora.Layout, read func(int64, []float32) error, err error) {
	if folder := a.LoRA.Folder(); folder != "" {
		c, l, read, err = readAdapters(cfg.Resolve(folder), base)
		if err == nil && c.Dropout > 0 {
			err = fmt.Errorf("%s has lora_dropout %v, which is not supported: set it to 0 in adapter_config.json", folder, c.Dropout)
		}
		if err != nil {
			return c, l, read, cfg.Fault("agents."+a.Name+".lora.init", err)
		}
	} else {
		c.Spec = lora.New(a.LoRA.R, a.LoRA.Alpha, a.LoRA.RSLoRA, a.LoRA.Targets)
		if l, err = c.Spec.Layout(base); err != nil {
			return c, l, read, cfg.Fault("agents."+a.Name+".lora.targets", err)
		}
		read = model.FreshAdapters(l, cfg.Run.Seed^task.Hash(a.Name), a.LoRA.Init == "gaussian")
	}
	c.Base, c.Revision = cfg.Base(a.Model.Path)
	return c, l, read, nil
}

func readAdapters(folder string, base arch.Config) (lora.PEFT, *lora.Layout, func(from int64, dst []float32) error, error) {
	read, err := weights.ReadAdapter(folder, base)
	if err != nil {
		return lora.PEFT{}, nil, nil, err
	}
	return read.Config, read.Layout, read.Fill, nil
}

// adapt gives the agent its adapters: the adapters of the checkpoint to continue from, or the initial ones.
func (p *Parts) adapt(ctx context.Context, want AgentSpec, a *config.Agent) error {
	c, l, read, err := adapters(want.Config, a, p.base.model.Config)
	if err != nil {
		return err
	}
	if want.Weights != "" {
		saved, err := weights.ReadAdapter(want.Weights, p.base.model.Config)
		if err != nil {
			return err
		}
		if saved.Layout.Numel != l.Numel {
			return fmt.Errorf("%s has adapters of %d parameters, but those of the configuration have %d", want.Weights, saved.Layout.Numel, l.Numel)
		}
		read = saved.Fill
	}
	adapted, err := p.hold(ctx, c, l, read)
	if err != nil {
		return err
	}
	p.Model, p.Params = adapted.Model(), adapted
	return nil
}

// hold creates adapters of the base, which are freed together with the base.
func (p *Parts) hold(ctx context.Context, c lora.PEFT, l *lora.Layout, read func(from int64, dst []float32) error) (*model.Adapters, error) {
	adapted, err := model.Adapt(ctx, p.base.model, c, l, read)
	if err == nil {
		p.frees = append(p.frees, adapted.Close)
	}
	return adapted, err
}

// loadInitialReference makes the run's initial policy the reference of the KL term: the base, to which new adapters add
// nothing, or the base with the configured adapters.
func (p *Parts) loadInitialReference(ctx context.Context, cfg *config.Config, a *config.Agent) error {
	if folder := a.LoRA.Folder(); folder != "" {
		return p.loadAdapterReference(ctx, cfg.Resolve(folder))
	}
	p.Reference = p.base.model
	return p.Learner.SetReference(ctx, p.Reference)
}

// loadAdapterReference makes the base with a folder's adapters the reference of the KL term.
func (p *Parts) loadAdapterReference(ctx context.Context, folder string) error {
	c, l, read, err := readAdapters(folder, p.base.model.Config)
	if err != nil {
		return err
	}
	adapted, err := p.hold(ctx, c, l, read)
	if err != nil {
		return err
	}
	p.Reference = adapted.Model()
	return p.Learner.SetReference(ctx, p.Reference)
}
