package trainer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/learner"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// AgentPlan is the memory that one agent will need, in bytes.
type AgentPlan struct {
	Agent  string
	Device string // "cpu", "cuda", "cuda:N"
	// Total is of that device: with the Snapshot where it is the CPU.
	weights.MemoryPlan
	Slots      int   // conversations held at once
	Reference  int64 // weights of the KL term, 0 without one; part of Total
	Checkpoint int64 // its files on disk, one checkpoint
}

// MemoryPlan says, before anything is allocated, what the named agents (nil: all that take part) will need.
// It reads the headers of checkpoints and no weights. The error names every model that cannot be opened.
func MemoryPlan(cfg *config.Config, names []string) ([]AgentPlan, error) {
	if names == nil {
		names = AgentNames(cfg)
	}
	var plans []AgentPlan
	var faults config.Errors
	for _, name := range names {
		a := cfg.Agent(name)
		if a == nil {
			return nil, fmt.Errorf("no agent %q in the configuration: it has %v", name, AgentNames(cfg))
		}
		arch, err := architecture(cfg, a)
		if err != nil {
			faults = append(faults, cfg.Fault("agents."+name+".model", err))
			continue
		}
		plans = append(plans, planAgent(cfg, a, arch))
	}
	return plans, faults.Err()
}

// Lever is a key of which memory is a multiple.
type Lever struct {
	Key   string // such as agents.planner.engine.slots
	Value int
	What  string // what the memory holds
	Bytes int64
}

// Levers are the keys to lower where agents need too much memory, the one on which most depends first.
func Levers(cfg *config.Config, plans []AgentPlan) []Lever {
	var out []Lever
	for _, p := range plans {
		if p.Slots == 0 {
			continue // only its checkpoints are here
		}
		prefix := "agents." + p.Agent + ".engine."
		out = append(out, Lever{prefix + "slots", p.Slots, "KV cache", p.KVCache})
		if p.Gradients > 0 {
			out = append(out, Lever{prefix + "micro_batch_tokens", cfg.Agent(p.Agent).Engine.MicroBatchTokens, "activations", p.Activations})
		}
	}
	slices.SortStableFunc(out, func(a, b Lever) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return out
}

// memoryFull adds to an agent's error for want of memory what can be done about it.
func memoryFull(cfg *config.Config, name string, err error) error {
	var op *torch.Error
	var kernel *kernels.Error
	if !(errors.As(err, &op) && op.OutOfMemory()) && !(errors.As(err, &kernel) && kernel.Status == kernels.OutOfMemory) {
		return err
	}
	plans, planned := MemoryPlan(cfg, []string{name})
	if planned != nil {
		return errors.Join(err, planned)
	}
	var keys []string
	for _, l := range Levers(cfg, plans) {
		keys = append(keys, fmt.Sprintf("%s (%d)", l.Key, l.Value))
	}
	return fmt.Errorf("%w: there is not enough memory for %s on %s: lower %s; --resume goes on", err, name, plans[0].Device, strings.Join(keys, " or "))
}

// architecture is what the agent's model will be.
func architecture(cfg *config.Config, a *config.Agent) (arch.Config, error) {
	if s := a.Model.Shape; s != nil {
		tok, err := shapeTokenizer(cfg, s)
		if err != nil {
			return arch.Config{}, err
		}
		return shapeConfig(s, tok)
	}
	path, err := cfg.Find(a.Model.Path)
	if err != nil {
		return arch.Config{}, err
	}
	src, err := weights.Open(path)
	if err != nil {
		return arch.Config{}, err
	}
	defer src.Close()
	return src.Config(), nil
}

func planAgent(cfg *config.Config, a *config.Agent, arch arch.Config) AgentPlan {
	learns, parameters := cfg.Learns(a) || coldStarts(cfg, a), arch.Parameters()
	compute := weights.F32
	if computesBF16(a) {
		compute = weights.BF16
	}
	p := AgentPlan{Agent: a.Name, Device: a.Device}
	p.Slots = slotsOf(cfg, a)
	p.MemoryPlan = weights.Plan(arch, weights.PlanOptions{
		ComputeDType: compute, Slots: int64(p.Slots), ContextLen: int64(contextOf(a, arch.MaxPosition)),
		Train: learns, Checkpointing: a.Engine.CheckpointActivations,
		MicroBatchTokens: int64(a.Engine.MicroBatchTokens), LogitRows: learner.DefaultHeadRows,
	})
	p.Checkpoint = 4 * parameters
	extra := int64(0)
	if a.Engine.DType == "bf16" {
		p.Weights += 2 * parameters // the copy that sampling reads
		extra += 2 * parameters
	}
	if compute != weights.F32 {
		if learns {
			p.Gradients += 2 * parameters // those of one micro-batch, in bf16
			extra += 2 * parameters
		} else {
			p.Weights += 4 * parameters // the fp32 master is held all the same
			extra += 4 * parameters
		}
	}
	if learns {
		p.Checkpoint += 8 * parameters // AdamW's moments
		if cfg.GRPO.KL != "none" && cfg.Learns(a) {
			p.Reference = 4 * parameters
			if compute != weights.F32 {
				p.Reference += 2 * parameters
			}
		}
	}
	p.Total += extra + p.Reference
	if !cfg.Learns(a) {
		p.Snapshot = 0 // frozen from the cold start on
	}
	if a.Device == "cpu" {
		p.Total += p.Snapshot
	}
	return p
}

// slotsOf is how many conversations an agent's engine holds at once: as many as a step has rollouts, unless
// configured.
func slotsOf(cfg *config.Config, a *config.Agent) int {
	if n := a.Engine.Slots; n > 0 {
		return n
	}
	const most = 128
	return min(cfg.Task.QueriesPerStep*cfg.GRPO.Rollouts, most)
}

// contextOf is how many tokens a conversation may reach with a model of so many positions.
func contextOf(a *config.Agent, positions int) int {
	for _, n := range []int{a.Engine.Context, a.Limits.MaxTokens} {
		if n > 0 {
			positions = min(positions, n)
		}
	}
	return positions
}

// computesBF16 says in which precision an agent's weights are used.
func computesBF16(a *config.Agent) bool {
	return a.DType == "bf16" || a.DType == "auto" && a.Device != "cpu"
}
