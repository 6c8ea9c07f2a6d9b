package phases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// workload is the input of every provider of a case; bench/peers/phases.py reads its JSON.
type workload struct {
	Suite       string      `json:"suite"`
	Folder      string      `json:"folder"` // of the weights in Hugging Face's layout, in float32; in bf16 if they are large
	DType       string      `json:"dtype"`  // the peer's type: "float32" or "bfloat16"
	Prompts     [][]int32   `json:"prompts"`
	Rollouts    int         `json:"rollouts"` // of each prompt
	NewTokens   int         `json:"new_tokens"`
	Completions [][]int32   `json:"completions"` // number i continues prompt i / Rollouts
	Advantages  []float64   `json:"advantages"`
	Checked     int         `json:"checked"`             // number of prompts, from the first, whose first completion is checked
	LogProbs    [][]float64 `json:"log_probs,omitempty"` // of the checked completions, in float64
	LR          float64     `json:"lr"`
	Rank        int         `json:"rank"`              // of the trained adapters; 0: the weights are trained
	MicroBatch  int         `json:"micro_batch"`       // tokens of an update's micro-batch
	File        string      `json:"file,omitempty"`    // the GGUF file of the suite "decode"
	Reading     bool        `json:"reading,omitempty"` // in the suite "decode": the reading of prompts is measured

	precision precision
	network   network
	config    arch.Config
	adapters  int64       // parameters of the adapters
	shared    bool        // two providers are in this process
	behaviour [][]float32 // the engine's log-probs of Completions
	against   string      // source of LogProbs
}

// prepare loads or makes the weights, writes them as a Hugging Face folder and samples the completions that the
// learner trains on.
func prepare(ctx context.Context, b bench, folder string, o Options) (w *workload, err error) {
	w = &workload{Suite: b.suite, Folder: folder, DType: b.precision.peer(), precision: b.precision, network: b.weights, MicroBatch: b.shape.microTokens(),
		Rollouts: b.shape.rollouts, NewTokens: b.shape.newTokens, LR: 1e-6,
		Checked: min(b.shape.prompts, 2), Rank: b.weights.rank, shared: b.weights.rank > 0}
	a := &actor{}
	defer func() { err = errors.Join(err, a.close(context.WithoutCancel(ctx))) }()
	if err := a.openDevice(b.precision, o); err != nil {
		return nil, err
	}
	if err := a.makeWeights(ctx, b, o.Root); err != nil {
		return nil, err
	}
	w.config = a.model.Config
	if !b.weights.large || o.Peers && len(b.peerNames()) > 0 {
		if err := a.export(ctx, folder, b.weights.large); err != nil {
			return nil, err
		}
	}
	w.Prompts = b.shape.makePrompts(0, b.promptVocabulary(w.config.VocabSize))
	if err := a.equip(ctx, actorOptions{engine: true}, w); err != nil {
		return nil, err
	}
	if a.adapters != nil {
		w.adapters = a.adapters.Numel()
	}
	completions, err := a.sample(ctx, w)
	if err != nil {
		return nil, err
	}
	for i, c := range completions {
		w.Completions, w.behaviour = append(w.Completions, c.Tokens), append(w.behaviour, c.LogProbs)
		w.Advantages = append(w.Advantages, float64(1-2*(i%2)))
	}
	w.LogProbs, err = a.trainingLogProbs(ctx, w, w.checked())
	w.against = "the other forward pass" // the sampler is compared with the trainer, and the trainer with the sampler
	if b.suite == "learner" {
		w.LogProbs = w.sampledLogProbs()
	}
	return w, err
}

// makePrompts returns the prompts of a shape, with ids below the vocabulary. Another first gives other prompts.
func (s shape) makePrompts(first uint32, vocabulary int) [][]int32 {
	prompts := make([][]int32, s.prompts)
	for i := range prompts {
		prompts[i] = make([]int32, s.promptTokens)
		measure.Index(prompts[i], first+uint32(i), uint32(vocabulary))
	}
	return prompts
}

// makeWeights reads the model from models/ or fills its shape.
func (a *actor) makeWeights(ctx context.Context, b bench, root string) (err error) {
	opt := a.modelOptions(b.precision, b.shape.promptTokens+b.shape.newTokens)
	switch {
	case b.weights.large:
		a.model, err = model.RandomOnDevice(ctx, a.device, b.weights.config, 1, opt)
		return err
	case b.weights.file == "":
		a.model, err = model.Random(ctx, a.device, b.weights.config, 1, opt)
		return err
	}
	file := b.weights.file
	if !filepath.IsAbs(file) {
		file = filepath.Join(root, "models", file)
	}
	if err = a.load(ctx, file, opt); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (make gsm8k fetches it)", err)
	}
	return err
}

// export writes the weights for the providers. Large ones are written once, in bf16.
func (a *actor) export(ctx context.Context, folder string, large bool) error {
	dtype := weights.F32
	if large {
		dtype = weights.BF16
		if _, err := os.Stat(folder); err == nil {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
			return err
		}
	}
	params := model.All(a.model)
	read := func(from int64, dst []float32) error { return params.Master().Read(ctx, from, dst) }
	return weights.HF{Config: a.model.Config, Read: params.Reader(ctx, read)}.WriteFolder(folder, dtype, nil)
}

// checked returns the first completion of each checked prompt.
func (w *workload) checked() (out [][]int32) {
	for i := range w.Checked {
		out = append(out, w.Completions[i*w.Rollouts])
	}
	return out
}

// trainingLogProbs returns the log-probs of the checked prompts' completions in the forward pass of training.
func (a *actor) trainingLogProbs(ctx context.Context, w *workload, completions [][]int32) (out [][]float64, err error) {
	err = a.device.Do(ctx, func(s *torch.Scope) error {
		for i, completion := range completions {
			prompt := w.Prompts[i]
			ids := append(append([]int32{}, prompt...), completion...)
			pos := make([]int32, len(ids))
			for t := range pos {
				pos[t] = int32(t)
			}
			n, k := int64(len(ids)), int64(len(completion))
			in := model.Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2)}
			var logp *torch.Tensor
			s.Grad(true, func() { // without gradients the model uses the engine's linear maps
				rows := a.policy().Forward(s, in).Narrow(0, int64(len(prompt))-1, k).Contiguous()
				logp, _ = torch.HeadLogProb(rows, a.model.Training.Head(), s.FromInt32(completion, k), 1, k)
			})
			values := make([]float32, k)
			logp.Float32s(values)
			out = append(out, widen(values))
		}
		return nil
	})
	return out, err
}

// sampledLogProbs returns the engine's log-probs of the checked completions.
func (w *workload) sampledLogProbs() (out [][]float64) {
	for i := range w.Checked {
		out = append(out, widen(w.behaviour[i*w.Rollouts]))
	}
	return out
}

// askFloat64 replaces LogProbs by the log-probs that transformers computes in float64. A provider that is not measured returns them as a
// setting.
func (w *workload) askFloat64(ctx context.Context, o Options) error {
	p, setup, err := o.Peer("float64", w).Open(ctx)
	if err != nil {
		return fmt.Errorf("log-probs in float64: %w", err)
	}
	w.LogProbs, w.against = nil, "transformers in float64"
	data, err := json.Marshal(setup.Settings["log_probs"])
	if err == nil {
		err = json.Unmarshal(data, &w.LogProbs)
	}
	if err == nil && len(w.LogProbs) != w.Checked {
		err = fmt.Errorf("of %d sequences, want %d", len(w.LogProbs), w.Checked)
	}
	if err = errors.Join(err, p.Close()); err != nil {
		return fmt.Errorf("log-probs in float64: %w", err)
	}
	return nil
}

func widen(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}
