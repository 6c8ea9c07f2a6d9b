package phases

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote"
)

// Server is an inference server that samples the same prompts as our engine, with the same weights.
type Server struct {
	Kind  remote.Kind
	URL   string
	Model string // the folder that it serves, under the same path here and there
	Half  bool   // our engine samples from bf16 weights
}

// CompareInTurn measures our rollouts and the server's in turn, and logs the tokens a second of both.
func CompareInTurn(ctx context.Context, s Server, o Options) (*measure.Results, error) {
	folder, err := filepath.Abs(s.Model)
	if err != nil {
		return nil, err
	}
	b := bench{name: string(s.Kind), suite: "rollout", weights: network{name: filepath.Base(folder), file: folder},
		shape: shape{prompts: 16, rollouts: 1, promptTokens: 90, newTokens: 64}}
	if o.Quick {
		b.shape = shape{prompts: 2, rollouts: 3, promptTokens: 12, newTokens: 7}
	}
	if s.Half {
		b.precision = half
	}
	beside := measure.Case{Label: b.name, Measure: func(ctx context.Context) (row measure.Row, err error) {
		err = b.prepared(ctx, o, func(w *workload) error {
			row, err = b.compare(ctx, w, o, measure.Opener{Name: b.name, Open: func(ctx context.Context) (measure.Provider, measure.Setup, error) {
				return s.open(ctx, w, o)
			}})
			return err
		})
		return row, err
	}}
	o.Only = ""
	return measure.Run(ctx, "rollout", o, []measure.Case{beside})
}

// open sends the weights to the server, and checks by sampling that it uses them.
func (s Server) open(ctx context.Context, w *workload, o Options) (_ measure.Provider, _ measure.Setup, err error) {
	a, err := openActor(ctx, actorOptions{}, w, o)
	if err != nil {
		return nil, measure.Setup{}, err
	}
	defer closeOnError(ctx, &err, a.close)
	version := ""
	engine, err := remote.New(ctx, actorWeights{a}, remote.Options{
		Kind: s.Kind, URLs: []string{s.URL}, Folder: filepath.Join(filepath.Dir(w.Folder), "served"), Name: "bench", Context: w.context() + 1,
		Vocabulary: w.config.VocabSize,
		InFlight:   len(w.Completions), Temperature: 1, Tolerance: 0.05, Patience: time.Minute, Note: func(text string) { version = text },
	})
	if err != nil {
		return nil, measure.Setup{}, err
	}
	a.engine = engine
	if err := engine.UpdateWeights(ctx, 0); err != nil {
		return nil, measure.Setup{}, err
	}
	return &measure.Native{
		Reset:  a.forget,
		Work:   func() error { return w.checkComplete(rollOut(ctx, a, w), a) },
		Error:  func() (float64, error) { return a.newestError(ctx, w) },
		Done:   func() error { return a.close(context.WithoutCancel(ctx)) },
		Memory: func(_ context.Context, run func() error) (int64, error) { return 0, run() }, // the server's memory is unknown
	}, measure.Setup{Version: version}, nil
}

// checkComplete returns err, or an error if a rollout has fewer tokens than requested.
func (w *workload) checkComplete(err error, a *actor) error {
	for i := 0; i < len(a.sampled) && err == nil; i++ {
		if n := len(a.sampled[i].Tokens); n != w.NewTokens {
			err = fmt.Errorf("it sampled %d tokens of %d: its context is too short", n, w.NewTokens)
		}
	}
	return err
}

// actorWeights supplies an actor's weights to a server. The server loads them again before each sample, which drops its cached prefixes.
type actorWeights struct{ of *actor }

func (l actorWeights) Write(ctx context.Context, dir string) error {
	return l.of.export(ctx, dir, false)
}

func (l actorWeights) Logits(ctx context.Context, ids []int32, ends []int) ([][]float32, error) {
	return l.of.model.Logits(ctx, ids, ends)
}

func (actorWeights) Frozen() bool { return false }

var _ remote.Weights = actorWeights{}

// promptVocabulary returns the number of ids that prompts may contain. Servers refuse ids without a text, which the vocabulary has at
// its end.
func (b bench) promptVocabulary(vocabulary int) int {
	if filepath.IsAbs(b.weights.file) {
		return vocabulary / 2
	}
	return vocabulary
}
