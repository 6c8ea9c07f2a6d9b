package assemble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/agent/play"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// modelSource is the opened source of an agent's initial weights: everything except the weights themselves.
type modelSource struct {
	arch      arch.Config
	tokenizer *tokenizer.Tokenizer
	source    *weights.Source // nil: random weights
}

// openModelSource opens the folder of a checkpoint or, if folder is "", the configured model. If t is nil, the configured task
// is used.
func openModelSource(cfg *config.Config, a *config.Agent, t task.Task, folder string) (o modelSource, err error) {
	if folder == "" && a.Model.Shape != nil {
		if o.tokenizer, err = shapeTokenizer(cfg, a.Model.Shape, t); err == nil {
			o.arch, err = shapeConfig(a.Model.Shape, o.tokenizer)
		}
		var fault *config.Error // a mistake in the task, whose vocabulary is the model's
		if err != nil && !errors.As(err, &fault) {
			err = cfg.Fault("agents."+a.Name+".model", err)
		}
		return o, err
	}
	if folder == "" {
		if folder, err = weightsOf(cfg, a); err != nil {
			return o, cfg.Fault("agents."+a.Name+".model", err)
		}
	}
	if o.source, err = weights.Open(folder); err == nil && cfg.Run.Save == "text" && !a.Adapts() {
		err = o.source.Alone()
	}
	if err == nil {
		err = model.CheckModuleNamed(o.source.Config(), modulePath(cfg, a))
	}
	if err == nil {
		o.arch = o.source.Config()
		o.tokenizer, err = tokenizer.LoadCheckpoint(folder, o.source.GGUFMeta())
	}
	if err != nil {
		return o, errors.Join(cfg.Fault("agents."+a.Name+".model", err), o.close())
	}
	return o, nil
}

// weightsOf returns the folder or file of an agent's initial weights.
func weightsOf(cfg *config.Config, a *config.Agent) (string, error) {
	if module := modulePath(cfg, a); module != "" {
		_, err := os.Stat(module)
		return cfg.Resolve(a.Model.Module.Folder()), err
	}
	return cfg.Find(a.Model.Path)
}

// modulePath returns the path of the agent's TorchScript module, or "" if its model has none.
func modulePath(cfg *config.Config, a *config.Agent) string {
	if a.Model.Module == nil {
		return ""
	}
	return cfg.Resolve(a.Model.Module.TorchScript)
}

func (o modelSource) close() error {
	if o.source == nil {
		return nil
	}
	return o.source.Close()
}

// model loads the model of the agent, or makes one with random weights, which depend on the seed only.
func (o modelSource) model(ctx context.Context, d *torch.Device, cfg *config.Config, a *config.Agent, opt model.Options) (*model.Model, error) {
	if opt.Compute = computeType(a); opt.Frozen && cfg.HoldsBF16(a) {
		opt.Compute = torch.BFloat16
	}
	opt.Quantised = a.Quantised() && o.source != nil && o.source.GGUFMeta() != nil // a reference may be a folder
	opt.Module = modulePath(cfg, a)
	if o.source != nil {
		return model.Load(ctx, d, o.source, opt)
	}
	return model.Random(ctx, d, o.arch, shapeSeed(cfg, a), opt)
}

// foldable returns an error if the agent's conversations cannot be folded within its model's context.
func foldable(a *config.Agent, c arch.Config) error {
	if err := a.Foldable(c.MaxPosition); err != nil {
		return fmt.Errorf("agents.%s.limits.fold.at: %w", a.Name, err)
	}
	return nil
}

// shapeSeed returns the seed of random weights.
func shapeSeed(cfg *config.Config, a *config.Agent) uint64 {
	if seed := a.Model.Shape.InitSeed; seed != 0 {
		return seed
	}
	return cfg.Run.Seed ^ task.Hash(a.Name)
}

// architecture returns the architecture of the agent's model, and the size of its weights if they stay quantised. It reads
// headers and the tokenizer, but no weights. If t is nil, the configured task is used.
func architecture(cfg *config.Config, a *config.Agent, t task.Task) (_ arch.Config, quantised int64, err error) {
	o, err := openModelSource(cfg, a, t, "")
	if err != nil {
		return arch.Config{}, 0, err
	}
	if a.Quantised() && o.source != nil {
		quantised = model.QuantisedBytes(o.source, computeType(a))
	}
	return o.arch, quantised, errors.Join(hasRows(cfg, a, o.tokenizer, o.arch.VocabSize), o.close())
}

// hasRows returns an error if a conversation can contain a token that has no row in the model's embedding.
func hasRows(cfg *config.Config, a *config.Agent, t *tokenizer.Tokenizer, rows int) error {
	id, text, beyond := t.TokenBeyond(rows)
	if !beyond {
		return nil
	}
	return cfg.Fault("agents."+a.Name+".model", fmt.Errorf("the tokenizer is larger than the model's vocabulary: its token %q has the id %d, but the "+
		"model has %d rows; use the model's own tokenizer, or resize the model's embedding",
		text, id, rows))
}

// DryRunResult holds the findings of DryRun.
type DryRunResult struct {
	TooLong        []task.Query      // queries whose prompts leave the agent no room for an answer
	Demonstrations play.Demonstrated // demonstrations of the agent's cold start
}

// DryRun opens and closes the files that the agent's worker opens: the model, tokenizer, chat template, prompt, tools, demonstrations, and
// the weights of the KL term. It opens neither the device nor the store, and loads no weights. It requests a turn from a hosted model. The
// length of a hosted model's prompts is unknown.
func DryRun(ctx context.Context, cfg *config.Config, a *config.Agent, t task.Task, queries []task.Query) (found DryRunResult, err error) {
	if a.Model.Endpoint != nil {
		m, player, err := openHosted(ctx, cfg, a, t, nil)
		if err != nil {
			return found, err
		}
		return found, errors.Join(player.Close(), m.Close(ctx))
	}
	o, err := openModelSource(cfg, a, t, "")
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	if o.source != nil {
		if err := o.source.Check(); err != nil {
			return found, cfg.Fault("agents."+a.Name+".model", err)
		}
	}
	if err := hasRows(cfg, a, o.tokenizer, o.arch.VocabSize); err != nil {
		return found, err
	}
	if err := CheckFiles(cfg, a); err != nil {
		return found, err
	}
	player, err := OpenPlayer(ctx, cfg, a, t, o.tokenizer, nil)
	if err != nil {
		return found, fmt.Errorf("agent %s: %w", a.Name, err)
	}
	defer func() { err = errors.Join(err, player.Close()) }()
	if err := foldable(a, o.arch); err != nil {
		return found, err
	}
	limit := a.ContextTokens(o.arch.MaxPosition)
	if found.TooLong, err = longPrompts(player, queries, limit); err != nil {
		return found, fmt.Errorf("agent %s: %w", a.Name, err)
	}
	if cfg.ColdStarts(a) {
		if found.Demonstrations, err = Demonstrations(cfg, player, limit); err != nil {
			return found, fmt.Errorf("cold start of %s: %w", a.Name, err)
		}
	}
	if a.Adapts() {
		if _, err := initialAdapters(cfg, a, o.arch); err != nil {
			return found, err
		}
	}
	if !cfg.HasKL(a) || cfg.KLToColdStart(a) || a.Adapts() && a.Reference == "" {
		return found, nil
	}
	reference, err := openReference(cfg, a, t)
	if err != nil {
		return found, err
	}
	if reference.source != nil {
		err = reference.source.Check()
	}
	return found, errors.Join(err, reference.close())
}

// longPrompts returns the queries whose prompts have at least limit tokens. A longer question makes a longer prompt. So
// longPrompts tries the longest questions first, and stops after several in a row whose prompts leave room.
func longPrompts(p *play.Player, queries []task.Query, limit int) (out []task.Query, err error) {
	const fitting = 100
	longest := slices.SortedStableFunc(slices.Values(queries), func(a, b task.Query) int { return cmp.Compare(len(b.Text), len(a.Text)) })
	for fits := 0; len(longest) > 0 && fits < fitting; longest = longest[1:] {
		tokens, err := p.PromptTokens(longest[0].Text)
		if err != nil {
			return nil, fmt.Errorf("making the prompt of %s: %w", longest[0].ID, err)
		}
		if fits++; tokens >= limit {
			out, fits = append(out, longest[0]), 0
		}
	}
	return out, nil
}

// openReference opens the weights of the KL term, without a tokenizer: the configured weights, or the weights from which
// the run starts. t is the same as in openModelSource.
func openReference(cfg *config.Config, a *config.Agent, t task.Task) (modelSource, error) {
	key, find := ".reference", func() (string, error) { return cfg.Find(a.Reference) }
	if a.Reference == "" {
		if a.Model.Shape != nil {
			return openModelSource(cfg, a, t, "")
		}
		key, find = ".model", func() (string, error) { return weightsOf(cfg, a) }
	}
	path, err := find()
	if err != nil {
		return modelSource{}, cfg.Fault("agents."+a.Name+key, err)
	}
	src, err := weights.Open(path)
	if err != nil {
		return modelSource{}, cfg.Fault("agents."+a.Name+key, err)
	}
	if err := model.CheckModuleNamed(src.Config(), modulePath(cfg, a)); err != nil {
		return modelSource{}, errors.Join(cfg.Fault("agents."+a.Name+key, err), src.Close())
	}
	return modelSource{arch: src.Config(), source: src}, nil
}
