// Package assemble builds the parts of a run from its configuration: the task, the tools, the store's options, and for
// each agent its device, weights, policy, player and learner.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package assemble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/agent/gateway"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/cgroup"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/launch"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// AgentParts holds the parts of one agent of a run. An agent with a hosted model has only a Player, a Policy and Rules.
type AgentParts struct {
	Device    *torch.Device
	Model     *model.Model  // sampled from and trained; includes the adapters, if there are any
	Params    model.Params  // the parameters that training changes
	SaveDType weights.DType // type of the weights in checkpoints
	Tokenizer *tokenizer.Tokenizer
	Player    *play.Player
	Policy    policy.Lifecycle
	Learner   *launch.RankedLearner // on all of the agent's devices; nil for an agent that does not learn
	Reference *model.Model          // reference of the KL term; nil without a KL term, and until the cold start is over
	Rules     Rules
	Gateway   *gateway.AgentServer // answers requests of programs; nil: no gateway
	Notes     []string             // unused tensors of the checkpoint, and the reasons why they are unused

	divided model.Options // how the weights are divided among the agent's devices

	base  *base                         // holds the weights of Model
	group *launch.RankGroup             // processes of the agent's further devices; nil: it has one device
	frees []func(context.Context) error // closed last, in reverse order
}

// AgentOptions configure the parts of an agent.
type AgentOptions struct {
	Config  *config.Config
	Agent   string
	Task    task.Task
	Weights string    // a checkpoint's folder; "": the configured model
	Learns  bool      // the agent needs a learner
	Gateway bool      // programs may use the agent
	Term    term.Term // the program's loss term for the agent; nil: none
	Process *Process

	// For a learning agent with several devices: this process's rank, the number of processes with a share of the trained
	// weights, and whether no process has more than its share.
	rank, size int
	gathered   bool

	Note func(text string) // receives notes on servers that sample and waits for them, and on tools that open slowly
}

// OpenLearner loads an agent's weights on all of its devices and allocates the buffers for training, but no sampler. After
// an error nothing remains allocated.
func OpenLearner(ctx context.Context, opt AgentOptions) (*AgentParts, error) {
	a := opt.Config.Agent(opt.Agent)
	p := &AgentParts{Rules: RulesOf(opt.Config, a)}
	if err := p.openModel(ctx, opt, a); err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	return p, nil
}

func (p *AgentParts) openModel(ctx context.Context, opt AgentOptions, a *config.Agent) error {
	if len(a.Ranks()) > 1 && (opt.Learns || !a.Engine.Remote()) { // otherwise the further devices have no work
		return p.openOnRanks(ctx, opt, a)
	}
	err := p.load(ctx, opt, a)
	if err == nil && opt.Learns {
		err = p.addLearner(ctx, opt, a, ranks.Solo{})
	}
	return err
}

// OpenAgent loads the agent's weights and allocates the objects that sample and train them. After an error nothing remains
// allocated.
func OpenAgent(ctx context.Context, opt AgentOptions) (p *AgentParts, err error) {
	cfg, a := opt.Config, opt.Config.Agent(opt.Agent)
	p = &AgentParts{Rules: RulesOf(cfg, a)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close(context.WithoutCancel(ctx)))
			p = nil
		}
	}()
	if a.Model.Endpoint != nil {
		m, player, err := openHosted(ctx, cfg, a, opt.Task, opt.Note)
		if err != nil {
			return p, err
		}
		p.Policy, p.Player = m, player
		return p, nil
	}
	if err = p.openModel(ctx, opt, a); err != nil {
		return p, err
	}
	if err = hasRows(cfg, a, p.Tokenizer, p.Model.Config.VocabSize); err != nil {
		return p, err
	}
	if p.Player, err = OpenPlayer(ctx, cfg, a, opt.Task, p.Tokenizer, opt.Note); err != nil {
		return p, err
	}
	sampler, err := p.openSampler(ctx, opt, a)
	if err != nil {
		return p, err
	}
	p.Policy, p.Player.Policy = sampler, sampler
	if opt.Gateway {
		p.Gateway = gateway.NewAgentServer(gateway.AgentOptions{Name: a.Name, Main: a.IsMain(), Seed: cfg.Run.Seed, Policy: sampler,
			Tokenizer: p.Tokenizer, Limits: p.Player.Limits, Variables: p.Player.Variables, Date: p.Player.Date})
	}
	return p, nil
}

// load loads the weights: from the checkpoint to continue from, from the configured folder or file, or random ones.
func (p *AgentParts) load(ctx context.Context, opt AgentOptions, a *config.Agent) error {
	folder := opt.Weights
	if a.Adapts() || a.Quantised() {
		folder = "" // a checkpoint has only the adapters, or widened weights that did not change
	}
	o, err := openModelSource(opt.Config, a, opt.Task, folder)
	if err != nil {
		return err
	}
	defer o.close()
	if err := foldable(a, o.arch); err != nil {
		return err
	}
	p.Tokenizer = o.tokenizer
	p.SaveDType = saveDType(opt.Config, a, weights.F32)
	if o.source != nil {
		p.SaveDType = saveDType(opt.Config, a, o.source.DType())
	}
	p.divided = model.Options{Rank: opt.rank, Size: opt.size, Gathered: opt.gathered}
	load := func() (*model.Model, error) {
		wanted := opt.Config.Run.Matmul == "bf16"
		if torch.SetRoundFactorsIfFaster(wanted) != wanted && opt.Note != nil {
			opt.Note("run.matmul has no effect: this processor does not multiply bf16 faster than fp32")
		}
		torch.SetDeterministic(opt.Config.Run.GPUDeterministic)
		torch.SetIdleThreadLimit(threads(opt.Config, 1))
		sharing := opt.sharing(a)
		d, err := torch.Open(a.Device, len(sharing)*threads(opt.Config, opt.devices()))
		if err != nil {
			return nil, opt.Config.Fault("agents."+a.Name+".device", err)
		}
		divided := p.divided
		divided.HalfCopy, divided.HostMaster = a.Engine.DType == "bf16", a.OptimizerState == "host"
		divided.Frozen, divided.MaxPosition = opt.Config.Frozen(a), positions(sharing)
		m, err := o.model(ctx, d, opt.Config, a, divided)
		if err != nil {
			err = errors.Join(err, d.Close())
		}
		return m, err
	}
	var free func(context.Context) error
	if p.base, free, err = opt.Process.take(baseKey(opt.Config, a), load); err != nil {
		return err
	}
	p.frees = append(p.frees, free)
	if o.source != nil {
		p.Notes = o.source.Notes()
	}
	p.Device, p.Model, p.Params = p.base.model.Device, p.base.model, model.All(p.base.model) // adapt narrows Params
	if a.Adapts() {
		return p.adapt(ctx, opt, a)
	}
	return nil
}

// saveDType returns the type in which an agent's weights are saved. If an agent does not learn, no float32 weights
// accompany its folder, so the folder itself must hold the weights exactly.
func saveDType(cfg *config.Config, a *config.Agent, read weights.DType) weights.DType {
	switch {
	case a.Adapts() || cfg.Run.SaveDType == "fp32" || !cfg.Learns(a) && cfg.ColdStarts(a):
		return weights.F32
	case cfg.Run.SaveDType == "bf16" && cfg.Learns(a):
		return weights.BF16
	}
	return read
}

// addLearner adds the learner, and the weights of the KL term unless they are the weights after a cold start.
func (p *AgentParts) addLearner(ctx context.Context, opt AgentOptions, a *config.Agent, group ranks.Group) error {
	cfg := opt.Config
	own, err := learner.New(ctx, p.Model, p.Params, learner.Options{
		Group: group, Objective: cfg.GRPO.Objective, Recomputed: cfg.GRPO.Old == "recomputed", Temperature: cfg.GRPO.Temperature,
		Adam: Adam(a.Optimizer), MicroBatchTokens: a.Engine.MicroBatchTokens, CheckpointActivations: a.Engine.CheckpointActivations,
		HostState: a.OptimizerState == "host", Replay: cfg.GRPO.Routing == "replay", RouterAuxCoef: cfg.GRPO.RouterAuxCoef, Term: opt.Term,
	})
	if err != nil {
		return err
	}
	p.Learner = p.group.NewLearner(own, Adam(a.Optimizer))
	p.Params = launch.RankedParams{Params: p.Params, Learner: p.Learner}
	if !cfg.HasKL(a) || cfg.KLToColdStart(a) {
		return nil
	}
	if a.Adapts() && a.Reference == "" { // the run's initial policy
		if folder := a.LoRA.Folder(); folder != "" {
			return p.loadAdapterReference(ctx, cfg.Resolve(folder))
		}
		p.Reference = p.base.model // new adapters add nothing
		return p.Learner.Rank0.SetReference(ctx, p.Reference)
	}
	o, err := openReference(cfg, a, opt.Task)
	if err != nil {
		return err
	}
	return p.setReference(ctx, cfg, a, o)
}

// LoadReference makes the weights in a folder the reference of the KL term, on all of the agent's devices.
func (p *AgentParts) LoadReference(ctx context.Context, cfg *config.Config, a *config.Agent, folder string) error {
	_, err := p.group.Do(ctx, launch.Order{Kind: launch.LoadReference, Folder: folder}, nil,
		func(ctx context.Context) error { return p.loadReference(ctx, cfg, a, folder) })
	return err
}

func (p *AgentParts) loadReference(ctx context.Context, cfg *config.Config, a *config.Agent, folder string) error {
	if a.Adapts() {
		return p.loadAdapterReference(ctx, folder)
	}
	src, err := weights.Open(folder)
	if err != nil {
		return err
	}
	return p.setReference(ctx, cfg, a, modelSource{arch: src.Config(), source: src})
}

// setReference loads the weights of the KL term and closes their source.
func (p *AgentParts) setReference(ctx context.Context, cfg *config.Config, a *config.Agent, o modelSource) (err error) {
	defer func() { err = errors.Join(err, o.close()) }()
	opt := p.divided
	opt.Frozen, opt.MaxPosition = true, positions([]*config.Agent{a})
	if p.Reference, err = o.model(ctx, p.Device, cfg, a, opt); err == nil {
		p.frees = append(p.frees, p.Reference.Close)
		err = p.Learner.Rank0.SetReference(ctx, p.Reference)
	}
	return err
}

func computeType(a *config.Agent) torch.DType {
	if a.ComputesBF16() {
		return torch.BFloat16
	}
	return torch.Float32
}

// threads returns the number of threads of a device: run.threads, or all cores, divided among the process's devices.
func threads(cfg *config.Config, devices int) int {
	return max(cmp.Or(cfg.Run.Threads, cgroup.UsableCores().N)/max(devices, 1), 1)
}

// devices counts the devices on this machine that the agents of this process use, including their followers' devices.
func (o AgentOptions) devices() (n int) {
	for _, name := range o.Process.Agents {
		n += len(o.Config.Agent(name).OnMachine())
	}
	return n
}

// Close frees the agent's parts.
func (p *AgentParts) Close(ctx context.Context) error {
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("closing the %s: %w", what, err))
		}
	}
	p.group.Close() // before the learner, which then frees rank 0's part
	if p.Gateway != nil {
		p.Gateway.Close()
	}
	if p.Player != nil {
		note("player", p.Player.Close())
	}
	if p.Policy != nil {
		note("policy", p.Policy.Close(ctx))
	}
	if p.Learner != nil {
		note("learner", p.Learner.Close(ctx))
	}
	for _, free := range slices.Backward(p.frees) {
		note("device and its weights", free(ctx))
	}
	return errors.Join(errs...)
}
