package phases

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/local"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// actor is the model, engine and learner of an agent, with the defaults of a run's configuration.
type actor struct {
	device   *torch.Device
	model    *model.Model
	adapters *model.Adapters // nil: the model's weights are trained
	engine   policy.Policy
	learner  updater

	steps   int64
	sampled []policy.Completion // in the last rollout
	before  int64               // bytes of the process's tensors when the device was opened
	rounds  bool                // products on the CPU round their factors to bf16
}

// updater is a learner with one device or several.
type updater interface {
	Prepare(ctx context.Context, batch []*learner.Sequence) error
	Update(ctx context.Context, minibatch []*learner.Sequence, lr float64) (learner.Report, error)
	Close(ctx context.Context) error
}

type actorOptions struct{ engine, learner bool }

const (
	microBatchTokens = 4096 // as engine.micro_batch_tokens
	loraAlpha        = 32
)

func openActor(ctx context.Context, opt actorOptions, w *workload, o Options) (a *actor, err error) {
	a = &actor{}
	defer closeOnError(ctx, &err, a.close)
	if err := a.openDevice(w.precision, o); err != nil {
		return a, err
	}
	m, err := a.device.Memory(ctx)
	if err != nil {
		return a, err
	}
	a.before = m.Allocated
	if err := a.readWeights(ctx, w); err != nil {
		return a, err
	}
	return a, a.equip(ctx, opt, w)
}

// openDevice opens the device, and has products round their factors as a run in this precision does.
func (a *actor) openDevice(p precision, o Options) (err error) {
	if a.device, err = torch.Open(o.Device, o.Threads); err == nil {
		a.rounds = torch.SetRoundFactorsIfFaster(p != full && !a.device.IsCUDA())
	}
	return err
}

// readWeights reads the workload's folder, or makes the same weights again if that is faster.
func (a *actor) readWeights(ctx context.Context, w *workload) (err error) {
	opt := a.modelOptions(w.precision, w.context())
	if w.network.large {
		a.model, err = model.RandomOnDevice(ctx, a.device, w.network.config, 1, opt)
		return err
	}
	return a.load(ctx, w.Folder, opt)
}

// load reads the weights of a file or a folder.
func (a *actor) load(ctx context.Context, path string, opt model.Options) error {
	src, err := weights.Open(path)
	if err != nil {
		return err
	}
	defer src.Close()
	a.model, err = model.Load(ctx, a.device, src, opt)
	return err
}

// modelOptions returns the types of the weights. With bf16, a GPU computes everything in bf16, and a CPU samples from a bf16 copy and
// multiplies with rounded factors (run.matmul).
func (a *actor) modelOptions(p precision, positions int) model.Options {
	opt := model.Options{Compute: torch.Float32, HalfCopy: p != full, MaxPosition: positions}
	if p != full && a.device.IsCUDA() {
		opt.Compute = torch.BFloat16
	}
	return opt
}

// context returns the length of a sequence.
func (w *workload) context() int { return len(w.Prompts[0]) + w.NewTokens }

// adapt puts new adapters on all linear maps.
func (a *actor) adapt(ctx context.Context, rank int) error {
	c := lora.PEFT{Spec: lora.New(rank, loraAlpha, false, nil)}
	layout, err := c.Spec.Layout(a.model.Config)
	if err == nil {
		a.adapters, err = model.Adapt(ctx, a.model, c, layout, model.FreshAdapters(layout, 1, false))
	}
	return err
}

// policy returns the model that samples and learns.
func (a *actor) policy() *model.Model {
	if a.adapters != nil {
		return a.adapters.Model()
	}
	return a.model
}

// params returns the trained parameters.
func (a *actor) params() model.Params {
	if a.adapters != nil {
		return a.adapters
	}
	return model.All(a.model)
}

// equip adds adapters, and starts the engine and the learner.
func (a *actor) equip(ctx context.Context, opt actorOptions, w *workload) (err error) {
	if w.Rank > 0 {
		if err := a.adapt(ctx, w.Rank); err != nil {
			return err
		}
	}
	if opt.engine {
		engineOpt := local.Options{Slots: len(w.Prompts) * w.Rollouts, HalfCache: w.precision != full}
		engine, err := local.OpenTenant(ctx, a.policy(), engineOpt, local.TenantOptions{})
		if err != nil {
			return err
		}
		a.engine = engine
	}
	if opt.learner {
		own, err := learner.New(ctx, a.policy(), a.params(), learner.Options{
			Objective: mgrpo.DefaultObjective(),
			Adam:      learner.Adam{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, WeightDecay: 0.1, Clip: 1}, Temperature: 1, MicroBatchTokens: w.MicroBatch,
		})
		if err != nil {
			return err
		}
		a.learner = own
	}
	return nil
}

// sample plays all rollouts of the workload at once, each a goroutine as in a run. Equal weights sample equal tokens.
func (a *actor) sample(ctx context.Context, w *workload) ([]policy.Completion, error) {
	out := make([]policy.Completion, len(w.Prompts)*w.Rollouts)
	all, ctx := errgroup.WithContext(ctx)
	for i := range out {
		query := i / w.Rollouts
		all.Go(func() (err error) {
			out[i], err = a.engine.Generate(ctx, policy.Request{
				Tokens:   w.Prompts[query],
				Sampling: policy.Sampling{Temperature: 1, MaxNew: w.NewTokens},
				Key:      policy.Key{RunSeed: 1, Query: fmt.Sprint(query), Rollout: i % w.Rollouts, Agent: "bench"},
			})
			return err
		})
	}
	return out, all.Wait()
}

// rollOut plays the phase that samples.
func rollOut(ctx context.Context, a *actor, w *workload) (err error) {
	a.sampled, err = a.sample(ctx, w)
	return err
}

// update plays the phase that learns: one update of the optimizer on the workload's completions.
func update(ctx context.Context, a *actor, w *workload) error {
	return a.learn(ctx, w.sequences(w.Completions, w.behaviour, w.Advantages), 0) // rate 0: every sample computes the same numbers
}

// step samples, computes rewards and advantages, and learns, like a run's step of an agent without sub-agents.
func step(ctx context.Context, a *actor, w *workload) error {
	if err := rollOut(ctx, a, w); err != nil {
		return err
	}
	groups := make([]mgrpo.RewardGroup, len(w.Prompts))
	var tokens [][]int32
	var logProbs [][]float32
	for i, c := range a.sampled {
		g := &groups[i/w.Rollouts]
		g.Rewards = append(g.Rewards, evenFraction(c.Tokens))
		tokens, logProbs = append(tokens, c.Tokens), append(logProbs, c.LogProbs)
	}
	normalised, err := learner.Normalise(ctx, a.model.Device, mgrpo.DefaultConvention(), groups)
	if err != nil {
		return err
	}
	var advantages []float64
	for _, g := range normalised.Groups {
		advantages = append(advantages, g.Advantage...)
	}
	if err := a.learn(ctx, w.sequences(tokens, logProbs, advantages), w.LR); err != nil {
		return err
	}
	a.steps++
	return a.engine.UpdateWeights(ctx, a.steps)
}

func (a *actor) learn(ctx context.Context, batch []*learner.Sequence, lr float64) error {
	if err := a.learner.Prepare(ctx, batch); err != nil {
		return err
	}
	r, err := a.learner.Update(ctx, batch, lr)
	if err == nil && r.Skipped {
		err = errors.New("nothing was learned: every advantage is 0")
	}
	return errors.Join(err, r.Refused)
}

// sequences pairs prompts with their completions.
func (w *workload) sequences(completions [][]int32, logProbs [][]float32, advantages []float64) (batch []*learner.Sequence) {
	for i, tokens := range completions {
		query := i / w.Rollouts
		prompt := w.Prompts[query]
		id := fmt.Sprintf("%d/%d", query, i%w.Rollouts)
		batch = append(batch, &learner.Sequence{
			ID: id, TrajectoryID: id, Tokens: slices.Concat(prompt, tokens),
			Sampled:   slices.Concat(make([]bool, len(prompt)), slices.Repeat([]bool{true}, len(tokens))),
			Behaviour: slices.Concat(make([]float32, len(prompt)), logProbs[i]),
			Group:     int64(query), Weight: 1, Advantage: advantages[i],
		})
	}
	return batch
}

// evenFraction returns the reward: the fraction of even ids.
func evenFraction(ids []int32) float64 {
	even := 0
	for _, id := range ids {
		if id%2 == 0 {
			even++
		}
	}
	return float64(even) / float64(len(ids))
}

func (a *actor) close(ctx context.Context) error {
	torch.SetRoundFactors(false)
	var all []error
	if a.engine != nil {
		all = append(all, a.engine.Close(ctx))
	}
	if a.learner != nil {
		all = append(all, a.learner.Close(ctx))
	}
	if a.adapters != nil {
		all = append(all, a.adapters.Close(ctx))
	}
	if a.model != nil {
		all = append(all, a.model.Close(ctx))
	}
	if a.device != nil {
		all = append(all, a.device.Close())
	}
	return errors.Join(all...)
}
