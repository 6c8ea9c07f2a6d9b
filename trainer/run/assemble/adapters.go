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

// adapters describes an agent's adapters before they are in memory. read is the same as in model.Adapt.
type adapters struct {
	config lora.PEFT
	layout *lora.Layout
	read   func(from int64, dst []float32) error
}

// trainedParameters returns the number of parameters that training changes in an agent's model of this architecture.
func trainedParameters(cfg *config.Config, a *config.Agent, base arch.Config) (int64, error) {
	if !a.Adapts() {
		return base.Parameters(), nil
	}
	initial, err := initialAdapters(cfg, a, base)
	if err != nil {
		return 0, err
	}
	return initial.layout.Numel, nil
}

// initialAdapters returns an agent's initial adapters: new adapters, or the adapters in the configured folder.
func initialAdapters(cfg *config.Config, a *config.Agent, base arch.Config) (of adapters, err error) {
	key := ".lora.init"
	if folder := a.LoRA.Folder(); folder != "" {
		of, err = readAdapters(cfg.Resolve(folder), base)
		if err == nil && of.config.Dropout > 0 {
			err = fmt.Errorf("%s has lora_dropout %v, which is not supported: set it to 0 in adapter_config.json", folder, of.config.Dropout)
		}
	} else {
		key = ".lora.targets"
		of.config.Spec = lora.New(a.LoRA.R, a.LoRA.Alpha, a.LoRA.RSLoRA, a.LoRA.Targets)
		if of.layout, err = of.config.Spec.Layout(base); err == nil {
			of.read = model.FreshAdapters(of.layout, cfg.Run.Seed^task.Hash(a.Name), a.LoRA.Init == "gaussian")
		}
	}
	if err != nil {
		return of, cfg.Fault("agents."+a.Name+key, err)
	}
	of.config.Base, of.config.Revision = cfg.Base(a.Model.Path)
	return of, nil
}

func readAdapters(folder string, base arch.Config) (adapters, error) {
	read, err := weights.ReadAdapter(folder, base)
	if err != nil {
		return adapters{}, err
	}
	return adapters{read.Config, read.Layout, read.Fill}, nil
}

// adapt gives the agent its adapters: the adapters of the checkpoint to continue from, or the initial ones.
func (p *AgentParts) adapt(ctx context.Context, opt AgentOptions, a *config.Agent) error {
	of, err := initialAdapters(opt.Config, a, p.base.model.Config)
	if err != nil {
		return err
	}
	if opt.Weights != "" {
		saved, err := readAdapters(opt.Weights, p.base.model.Config)
		if err != nil {
			return err
		}
		if saved.layout.Numel != of.layout.Numel {
			return fmt.Errorf("%s has adapters of %d parameters, but those of the configuration have %d", opt.Weights, saved.layout.Numel, of.layout.Numel)
		}
		of.read = saved.read
	}
	adapted, err := p.newAdapters(ctx, of)
	if err != nil {
		return err
	}
	p.Model, p.Params = adapted.Model(), adapted
	return nil
}

// newAdapters creates adapters of the base, which are freed together with the base.
func (p *AgentParts) newAdapters(ctx context.Context, of adapters) (*model.Adapters, error) {
	adapted, err := model.Adapt(ctx, p.base.model, of.config, of.layout, of.read)
	if err == nil {
		p.frees = append(p.frees, adapted.Close)
	}
	return adapted, err
}

// loadAdapterReference makes the base with a folder's adapters the reference of the KL term.
func (p *AgentParts) loadAdapterReference(ctx context.Context, folder string) error {
	of, err := readAdapters(folder, p.base.model.Config)
	if err != nil {
		return err
	}
	adapted, err := p.newAdapters(ctx, of)
	if err != nil {
		return err
	}
	p.Reference = adapted.Model()
	return p.Learner.Rank0.SetReference(ctx, p.Reference)
}
